from __future__ import annotations

import errno
import uuid

import pytest
import torch
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

import ml
from ml.errors import MemoryExhausted
from service.settings import Settings
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.errors import (
    ArtifactDamaged,
    ArtifactsUnavailable,
    CertificateRejected,
    ClockBehind,
    DiskFull,
    Gone,
    KeyInactive,
    PolicyMissed,
)
from service.store.models.registry import current_version
from service.store.tables import Batch
from tests import samples
from worker import forget
from worker.context import WorkerContext
from worker.failures import classify
from worker.forget import forget_pending

BATCH = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("error", "permanent", "splits", "message"),
    [
        (ml.InvalidInput("give finite rows"), True, True, "give finite rows"),
        (ml.NumericalFailure("raise the damping"), True, True, "raise the damping"),
        (PolicyMissed("allow more rungs"), True, True, "allow more rungs"),
        (SoftTimeLimitExceeded(), True, True, "LETHE_TASK_SECONDS"),
        (MemoryError(), False, True, "memory ran out"),
        (MemoryExhausted("too large"), False, True, "memory ran out"),
        (torch.OutOfMemoryError("CUDA"), False, True, "memory ran out"),
        (RuntimeError("CUDA error: out of memory"), False, True, "memory ran out"),
        (KeyInactive("restart with its successor"), False, False, "restart with its successor"),
        (ClockBehind("correct the clock"), False, False, "correct the clock"),
        (CertificateRejected("report it"), False, False, "report it"),
        (ArtifactDamaged("x"), False, False, "restore it from the backup"),
        (Gone("x"), False, False, "restore it from the backup"),
        (OSError(errno.ENOSPC, "x"), False, False, "the disk is full"),
        (OSError(errno.EDQUOT, "x"), False, False, "the disk is full"),
        (DiskFull("x"), False, False, "the disk is full"),
        (ArtifactsUnavailable("x"), False, False, "could not be read or written"),
        (ConnectionResetError(), False, False, "could not be read or written"),
        (OperationalError("SELECT", {}, Exception()), False, False, "the database did not answer"),
        (TypeError("surprise"), False, True, f"unexpected TypeError: see the worker's log for batch {BATCH}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_failure_says_whether_to_retry_and_what_to_do(
    error: Exception, permanent: bool, splits: bool, message: str
) -> None:
    failure = classify(error, BATCH)
    assert (failure.permanent, failure.splits) == (permanent, splits)
    assert message in failure.reason


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"])
def test_reaching_a_time_limit_of_the_database_is_transient(database: Database, setting: str) -> None:
    with database.engine.connect() as holder, database.engine.connect() as waiter:
        holder.execute(text("SELECT pg_advisory_xact_lock(1)"))
        waiter.execute(text("SELECT pg_advisory_xact_lock(2)"))
        waiter.execute(text(f"SET LOCAL {setting} = '20ms'"))
        if setting.startswith("idle"):  # the pause lasts until its locks are free
            holder.execute(text("SELECT pg_advisory_xact_lock(2)"))
        with pytest.raises(DBAPIError) as error:
            waiter.execute(text("SELECT pg_advisory_xact_lock(1)"))
    failure = classify(error.value, BATCH)
    assert (failure.permanent, failure.splits) == (False, False)
    assert "the database did not answer" in failure.reason


def test_exhausted_cpu_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58)
    assert "memory ran out" in classify(caught.value, BATCH).reason
    assert "unexpected RuntimeError" in classify(RuntimeError("shapes differ"), BATCH).reason


def test_a_full_disk_postpones_the_deletion_and_damages_nothing(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    with database.reading() as session:
        before = current_version(session, model_id)

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(forget, "write_ahead", full)
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        view_after = find_view(session, view.deletion.id, caller=None)
        batch = session.query(Batch).one()
        assert current_version(session, model_id).id == before.id
    assert (view_after.deletion.status, view_after.targets[0].attempts) == ("pending", 1)
    assert (batch.status, batch.failure) == ("failed", view_after.targets[0].failure)
    assert "the disk is full: nothing was damaged; free space" in (batch.failure or "")
    for digest in (before.posterior_digest, before.dataset_digest):
        assert context.artifacts.get(model_id, digest)
