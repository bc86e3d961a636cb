"""Members of an ensemble trained side by side, and what is left when a worker dies among them."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sqlalchemy import select

from lethe.verify import verify
from ml.inference.members import train_ensemble
from service.settings import Settings
from service.store.batches.doorbell import PART_TASK
from service.store.batches.lifecycle import end_batch
from service.store.batches.parts import take_part
from service.store.certificates.bundles import find_certificate
from service.store.database import Database
from service.store.errors import LeaseLost
from service.store.states import BatchStatus
from service.store.tables import Batch, BatchPart, Certificate
from tests import samples
from tests.faults.fork_client import environment
from tests.ml.ensembles import RECIPE, small_ensemble
from tests.ml.networks import TINY
from tests.worker.ensembles import ROWS_EACH, current_ensemble, one_person_of_each_member, register_ensemble
from worker import parts
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.parts import help_training

HELPER = """
    import os, signal, uuid
    import worker.parts
    from service.settings import load_settings
    from worker.context import WorkerContext

    worker.parts.retrain_member = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    worker.parts.help_training(WorkerContext.open(load_settings()), uuid.UUID("{model_id}"))
"""


class Bell:
    """A doorbell that calls somebody, at the first ring for help only."""

    def __init__(self, answer: Callable[[uuid.UUID], Any]) -> None:
        self.rings = 0
        self._answer = answer

    def ring(self, model_id: uuid.UUID, task: str) -> bool:
        assert task == PART_TASK
        self.rings += 1
        if self.rings == 1:
            self._answer(model_id)
        return True


def never_saw(*people: int) -> bytes:
    """Return the ensemble trained from scratch without these people."""
    ensemble, data = small_ensemble()
    keep = torch.tensor([row // ROWS_EACH not in people for row in range(len(data))])
    return train_ensemble(TINY, data[keep], ensemble.shard[keep], RECIPE, seed=5).to_bytes()


def verified(context: WorkerContext) -> dict[str, Any]:
    with context.database.reading() as session:
        certificate_id = session.scalars(select(Certificate.id)).one()
        bundle = find_certificate(session, certificate_id, caller=None)
    return dict(verify(bundle.encode(), context.signer.public_pem.encode()).predicate)


def test_one_person_costs_one_member_and_leaves_what_training_without_would_give(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = register_ensemble(settings, database)
    samples.request_deletion(settings, database, 4)
    bell = Bell(lambda _: pytest.fail("nobody has to help"))
    forget_pending(replace(context, doorbell=bell), model_id)  # type: ignore[arg-type]
    assert current_ensemble(context, model_id).to_bytes() == never_saw(4)
    bound = verified(context)["bound"]
    assert (bound["level"], bound["epsilon"], bound["n_retained"]) == ("retrained", 0.0, 87)
    (retrained,) = bound["constants"]["retrained"]
    assert retrained["rows_before"] - retrained["rows_after"] == 3
    before, member = small_ensemble()[0], retrained["member"]
    expected = [{"member": k, "sha256": before.digest_of(k)} for k in range(3) if k != member]
    assert bound["constants"]["unchanged"] == expected


def test_helpers_train_members_whose_files_are_gone_before_the_certificate(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id, people = register_ensemble(settings, database), one_person_of_each_member()
    samples.request_deletion(settings, database, *people)
    helped: list[int] = []
    bell = Bell(lambda model_id: helped.append(help_training(context, model_id)))
    forget_pending(replace(context, doorbell=bell), model_id)  # type: ignore[arg-type]
    assert (bell.rings, helped) == (2, [3])
    assert current_ensemble(context, model_id).to_bytes() == never_saw(*people)
    erasure = verified(context)["erasure"]
    assert [file["kind"] for file in erasure["destroyed"]] == ["member"] * 3
    stored = {file.name for file in context.artifacts.files(model_id)}
    assert not stored & {file["digest"] for file in erasure["destroyed"]}
    with database.reading() as session:
        assert session.scalars(select(BatchPart)).all() == []
    assert help_training(context, model_id) == 0


@pytest.mark.slow
def test_a_helper_killed_while_it_trains_delays_the_batch_by_its_lease(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id, people = register_ensemble(settings, database), one_person_of_each_member()
    samples.request_deletion(settings, database, *people)
    exits: list[int] = []

    def send_victim(model_id: uuid.UUID) -> None:
        env = {**environment(settings), "LETHE_LEASE_SECONDS": "1", "PATH": "/usr/bin:/bin"}
        script = textwrap.dedent(HELPER).format(model_id=model_id)
        exits.append(subprocess.run([sys.executable, "-c", script], env=env, check=False).returncode)
        with database.reading() as session:
            taken = session.scalars(select(BatchPart.member).where(BatchPart.worker.is_not(None))).all()
        assert taken == [0]

    forget_pending(replace(context, doorbell=Bell(send_victim)), model_id)  # type: ignore[arg-type]
    assert exits == [-signal.SIGKILL]
    assert current_ensemble(context, model_id).to_bytes() == never_saw(*people)


def test_a_helper_that_fails_leaves_its_part_to_the_holder(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id, people = register_ensemble(settings, database), one_person_of_each_member()
    samples.request_deletion(settings, database, *people)

    def fail(*_: object) -> None:
        raise MemoryError

    def answer(model_id: uuid.UUID) -> None:
        with monkeypatch.context() as failing:
            failing.setattr(parts, "retrain_member", fail)
            with pytest.raises(MemoryError):
                help_training(context, model_id)

    forget_pending(replace(context, doorbell=Bell(answer)), model_id)  # type: ignore[arg-type]
    assert current_ensemble(context, model_id).to_bytes() == never_saw(*people)


def test_what_a_helper_trains_for_a_batch_that_ended_is_not_stored(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id, people = register_ensemble(settings, database), one_person_of_each_member()
    samples.request_deletion(settings, database, *people)
    before = set(context.artifacts.files(model_id))
    train = parts.retrain_member

    def end_and_train(*arguments: Any) -> Any:
        with database.writing() as session:
            end_batch(session, session.scalars(select(Batch.id)).one(), BatchStatus.ABANDONED)
        return train(*arguments)

    def answer(model_id: uuid.UUID) -> None:
        with monkeypatch.context() as ending:
            ending.setattr(parts, "retrain_member", end_and_train)
            assert help_training(context, model_id) == 0

    forget_pending(replace(context, doorbell=Bell(answer)), model_id)  # type: ignore[arg-type]
    assert set(context.artifacts.files(model_id)) == before
    with database.writing() as session, pytest.raises(LeaseLost):
        take_part(session, session.scalars(select(Batch.id)).one(), "helper", 1.0)
