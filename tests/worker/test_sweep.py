from __future__ import annotations

import base64
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import redis
from sqlalchemy import select, update

from service.logs import configure_logging
from service.settings import Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.store import write_ahead
from service.store.batches.doorbell import CHECK_TASK, FORGET_TASK, QUEUES, REFRESH_TASK, Doorbell
from service.store.batches.lifecycle import claim_batch, end_batch
from service.store.database import Database
from service.store.deletions.summaries import find_summaries
from service.store.states import BatchStatus, Device
from service.store.tables import Artifact, AuditEntry, Batch, Deletion, DeletionTarget, ErasureTrace, Subject, now
from tests import samples
from tests.database_files import count_found, read_files
from tests.waiting import wait_until
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.readiness import check_current
from worker.sweep import run_sweep, sweep_once

QUEUE = QUEUES[Device.CPU]


def sweep_and_read(queue: redis.Redis, context: WorkerContext, task: str = FORGET_TASK) -> list[uuid.UUID]:
    """Return the models for which one sweep sends messages of the task, in order."""
    queue.delete(QUEUE)
    sweep_once(context.database, context.artifacts, context.doorbell)
    return read_messages(queue, task)


def read_messages(queue: redis.Redis, task: str = FORGET_TASK) -> list[uuid.UUID]:
    messages = [json.loads(message) for message in reversed(queue.lrange(QUEUE, 0, -1))]
    bodies = [
        json.loads(base64.b64decode(message["body"])) for message in messages if message["headers"]["task"] == task
    ]
    return [uuid.UUID(arguments[0]) for arguments, *_ in bodies]


def test_rings_for_pending_deletions_without_a_worker(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    model_id = samples.register_sample(settings, database)
    assert sweep_and_read(queue, context) == []
    samples.request_deletion(settings, database, 1)
    samples.request_deletion(settings, database, 2)
    assert sweep_and_read(queue, context) == [model_id]
    with database.writing() as session:
        claim = claim_batch(session, model_id, "worker", context.terms)
    assert claim is not None
    samples.request_deletion(settings, database, 3)
    assert sweep_and_read(queue, context) == []  # its worker holds the lease
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert sweep_and_read(queue, context) == [model_id]


def test_rings_first_where_the_deadline_is_nearest(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    model_ids = [samples.register_sample(settings, database) for _ in range(3)]
    for model_id, days in zip(model_ids, (20, 3, 11), strict=True):
        view = samples.request_deletion(settings, database, 1, model_ids=[model_id])
        with database.writing() as session:
            session.get_one(Deletion, view.deletion.id).due_at = now() + timedelta(days=days)
    assert sweep_and_read(queue, context) == [model_ids[1], model_ids[2], model_ids[0]]


def test_concurrent_sweeps_log_each_destruction_once(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    model_ids = [samples.register_sample(settings, database) for _ in range(3)]
    samples.request_deletion(settings, database, 1)
    due_digests = [
        write_ahead(database, context.artifacts, model_id, "posterior", f"draft {number}".encode())
        for model_id in model_ids
        for number in range(5)
    ]
    with database.writing() as session:
        session.execute(update(Artifact).where(Artifact.digest.in_(due_digests)).values(destroy_at=now()))
    barrier = threading.Barrier(4)

    def sweep(_: int) -> None:
        barrier.wait(timeout=30)
        sweep_once(context.database, context.artifacts, context.doorbell)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(sweep, range(4)))
    assert sorted(read_messages(queue)) == sorted(model_ids * 4)
    with database.reading() as session:
        logged = session.scalars(select(AuditEntry).where(AuditEntry.action == "artifact.destroyed")).all()
        assert sorted((entry.concerns, entry.details["digest"]) for entry in logged) == sorted(
            (str(artifact.model_id), artifact.digest)
            for artifact in session.scalars(select(Artifact).where(Artifact.digest.in_(due_digests)))
        )
        assert len(find_summaries(session, 5)) == 1


def test_rings_for_unchecked_versions(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    model_id = samples.register_sample(settings, database)
    assert sweep_and_read(queue, context, CHECK_TASK) == [model_id]
    check_current(context, model_id)
    assert sweep_and_read(queue, context, CHECK_TASK) == []


def test_does_not_ring_for_a_deletion_in_backoff(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now() + timedelta(minutes=1)))
    assert sweep_and_read(queue, context) == []


def test_writes_and_logs_the_daily_summary_once(
    settings: Settings, database: Database, context: WorkerContext, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("INFO")
    doorbell = Doorbell(settings.broker, context.database)
    for _ in range(2):
        sweep_once(context.database, context.artifacts, doorbell)
    doorbell.close()
    with database.reading() as session:
        (summary,) = find_summaries(session, 5)
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "summary.daily" in line]
    assert line["day"] == summary.day.isoformat()
    assert line["gdpr"] == {"received": 0, "completed": 0, "failed": 0, "overdue": 0, "due_soon": 0}


def test_runs_until_stopped(settings: Settings) -> None:
    stop = threading.Event()
    sweep = threading.Thread(target=run_sweep, args=(settings, stop))
    sweep.start()
    stop.set()
    sweep.join(timeout=10)
    assert not sweep.is_alive()


def test_destroys_leftovers_and_warns_of_a_store_that_keeps_versions(
    settings: Settings,
    database: Database,
    context: WorkerContext,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("INFO")
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        claim = claim_batch(session, model_id, "worker", context.terms)
    assert claim is not None
    digest = write_ahead(database, context.artifacts, model_id, "dataset", b"rows", batch_id=claim.batch_id)
    with database.writing() as session:
        end_batch(session, claim.batch_id, BatchStatus.FAILED)
        session.execute(update(DeletionTarget).values(not_before=now() + timedelta(hours=1)))
    monkeypatch.setattr(ArtifactFolder, "keeps_versions", lambda self: True)
    stop = threading.Event()
    sweep = threading.Thread(target=run_sweep, args=(settings, stop))
    sweep.start()
    path = settings.artifact_dir / str(model_id) / digest
    wait_until(lambda: not path.exists(), "the leftover is destroyed")
    wait_until(lambda: "artifacts.versioned" in capsys.readouterr().out, "the warning is logged")
    stop.set()
    sweep.join(timeout=10)


def test_keys_of_erased_people_leave_the_files_while_the_service_runs(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        erased = session.scalars(select(Subject).where(Subject.lookup == samples.lookup(settings, 1))).one()
    samples.request_deletion(settings, database, 1)
    assert forget_pending(context, model_id)
    stop = threading.Event()
    thread = threading.Thread(target=run_sweep, args=(settings, stop))
    thread.start()
    wait_until(lambda: not _has_traces(database), "the sweep has cleared the traces", timeout=30)
    content = read_files(database)
    stop.set()
    thread.join()
    assert count_found(content, [erased.key, erased.lookup]) == 0


def _has_traces(database: Database) -> bool:
    with database.reading() as session:
        return session.scalars(select(ErasureTrace)).first() is not None


def test_rings_for_worn_sample_sets_only_while_no_deletion_waits(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    model_id = samples.register_worn_set(settings, database)
    check_current(context, model_id)

    def sweep(below: float) -> list[uuid.UUID]:
        queue.delete(QUEUE)
        sweep_once(context.database, context.artifacts, context.doorbell, below)
        return read_messages(queue, REFRESH_TASK)

    assert sweep(0.8) == [model_id]
    assert sweep(0.0) == []
    samples.request_deletion(settings, database, 1)
    assert sweep(0.8) == []
