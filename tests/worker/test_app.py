from __future__ import annotations

import pytest

from service.settings import Settings
from worker import app
from worker.app import create_worker, default_queues

SETTINGS = Settings(_env_file=None, task_seconds=600, worker_memory_bytes=3 << 30)  # type: ignore[call-arg]


def test_a_task_has_a_soft_and_a_hard_time_limit() -> None:
    conf = create_worker(SETTINGS, "worker").conf
    assert conf.task_soft_time_limit == 600
    assert conf.task_time_limit == 900
    # After this time Redis redelivers a message: never while its task may still run.
    assert conf.broker_transport_options["visibility_timeout"] > conf.task_time_limit
    assert conf.broker_transport_options["socket_connect_timeout"] == 2  # the options of all processes are kept


@pytest.mark.parametrize(("limit", "kibibytes"), [(3 << 30, 3 << 20), (1, 1), (0, None)])
def test_the_memory_of_a_child_is_limited_in_kibibytes(limit: int, kibibytes: int | None) -> None:
    settings = SETTINGS.model_copy(update={"worker_memory_bytes": limit})
    assert create_worker(settings, "worker").conf.worker_max_memory_per_child == kibibytes


def test_messages_are_json_acknowledged_after_the_work_and_have_no_results() -> None:
    conf = create_worker(SETTINGS, "worker").conf
    assert (conf.accept_content, conf.task_serializer, conf.task_ignore_result) == (["json"], "json", True)
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert conf.result_backend is None


def test_both_tasks_are_there() -> None:
    assert {"worker.forget", "worker.readiness"} <= set(create_worker(SETTINGS, "worker").tasks)


@pytest.mark.parametrize(("gpu", "queues"), [(False, ["lethe.cpu"]), (True, ["lethe.cpu", "lethe.cuda"])])
def test_only_a_worker_with_a_gpu_takes_models_that_need_one(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, queues: list[str]
) -> None:
    monkeypatch.setattr(app, "has_cuda", lambda: gpu)
    assert default_queues() == queues
