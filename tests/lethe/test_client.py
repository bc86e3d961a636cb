"""The client against a real server, with a worker in this process."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load

from lethe import Client, LetheError
from lethe.verify import verify
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api, api  # noqa: F401
from tests.worker.conftest import context  # noqa: F401
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.readiness import check_current


@pytest.fixture
def clients(api: Api) -> Iterator[dict[str, Client]]:  # noqa: F811
    with ExitStack() as opened:
        yield {role.value: opened.enter_context(Client(api.url, api.tokens[role], patience=1.0)) for role in Role}


def register(engineer: Client, **options: Any) -> dict[str, Any]:
    parts = samples.parts()
    files = (io.BytesIO(parts[name]) for name in ("posterior", "records"))
    return engineer.register_model(json.loads(parts["manifest"]), *files, json.loads(parts["subjects"]), **options)


def test_register_check_wait_and_download(
    clients: dict[str, Client],
    context: WorkerContext,  # noqa: F811
    tmp_path: Path,
) -> None:
    engineer, compliance = clients["engineer"], clients["compliance"]
    model = register(engineer, never_seen=samples.parts()["records"])
    with pytest.raises(TimeoutError, match="still unchecked"):
        engineer.readiness(model["id"], timeout=0)
    check_current(context, uuid.UUID(model["id"]))
    assert engineer.readiness(model["id"])["ready"] is True
    deletion = compliance.delete([samples.person(1)])
    assert compliance.download(deletion["id"], tmp_path / "early") == []
    with pytest.raises(TimeoutError, match="still pending"):
        compliance.wait(deletion["id"], timeout=0)
    statuses: list[str] = []
    worker = threading.Timer(0.3, forget_pending, (context, uuid.UUID(model["id"])))
    worker.start()
    ended = compliance.wait(deletion["id"], on_progress=lambda deletion: statuses.append(deletion["status"]))
    worker.join()
    assert (statuses[0], statuses[-1], ended["status"]) == ("pending", "completed", "completed")
    (file,) = compliance.download(deletion["id"], tmp_path)
    key = (tmp_path / "lethe-keys.json").read_bytes()
    assert verify(file.read_bytes(), key, engineer.posterior(model["id"])).kind == "certificate"


def test_a_certificate_of_absence_is_downloaded_too(clients: dict[str, Client], tmp_path: Path) -> None:
    deletion = clients["compliance"].delete([samples.person(1)])
    (file,) = clients["compliance"].download(deletion["id"], tmp_path)
    assert file.name == f"absence-{deletion['id']}.json"


def test_draws_of_a_sample_set_are_picked(clients: dict[str, Client], settings: Settings, database: Database) -> None:
    model_id = str(samples.register_sample_set(settings, database))
    first, second = (clients["engineer"].draws(model_id, 3, seed) for seed in (0, 1))
    assert load(first)["samples"].shape == (3, 2)
    assert first != second


def test_many_deletions_and_single_records_in_one_call(clients: dict[str, Client]) -> None:
    model = register(clients["engineer"])
    compliance = clients["compliance"]
    requests = [{"subjects": [samples.person(1)]}, {"subjects": []}, {"records": [{"model": model["id"], "record": 0}]}]
    key = str(uuid.uuid4())
    results = compliance.delete_many(requests, idempotency_key=key)
    assert [line["status"] for line in results] == [201, 422, 201]
    assert compliance.delete_many(requests, idempotency_key=key) == results
    receipt = compliance.delete(
        records=[{"model": model["id"], "record": 1}], callback_urls=["https://hooks.example.org/lethe"]
    )
    assert receipt["records"] == [{"model": model["id"], "record": 1}]


def test_an_import_that_is_not_allowed_says_what_to_do(clients: dict[str, Client]) -> None:
    manifest = json.loads(samples.parts()["manifest"])
    with pytest.raises(LetheError, match="LETHE_IMPORT_ROOT") as refused:
        clients["engineer"].import_model(manifest, {"posterior": "a", "records": "b", "subjects": "c"})
    assert refused.value.status == 403
