"""Claim, lease, takeover and failure are decided by the database, independently of broker and clocks."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.batches.due import models_to_ring
from service.store.batches.lifecycle import (
    WORKER_SILENT,
    BatchStatus,
    Claim,
    ClaimTerms,
    claim_batch,
    end_batch,
    fail_batch,
    renew_lease,
)
from service.store.clock import current_time
from service.store.database import Database
from service.store.deletions import interventions
from service.store.errors import LeaseLost
from service.store.tables import Batch, Deletion, DeletionTarget, Record, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)


def claim(database: Database, model_id: uuid.UUID, terms: ClaimTerms = TERMS) -> Claim | None:
    with database.writing() as session:
        return claim_batch(session, model_id, "worker", terms)


def expire(database: Database, batch_id: uuid.UUID) -> None:
    with database.writing() as session:
        session.execute(update(Batch).where(Batch.id == batch_id).values(lease_expires_at=now() - timedelta(seconds=1)))


def statuses(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(Deletion.status).order_by(Deletion.received_at)))


def test_all_pending_deletions_are_claimed_together(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    for number in (1, 4, 4):
        samples.request_deletion(settings, database, number, request_id=f"r{number}")
    claimed = claim(database, model_id)
    assert claimed is not None
    assert list(claimed.forgotten) == [*range(4, 8), *range(16, 20)]
    assert sorted(request for _, request in claimed.requests) == ["r1", "r4", "r4"]
    assert statuses(database) == ["running"] * 3


def test_nothing_pending_claims_nothing(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    assert claim(database, model_id) is None
    assert claim(database, uuid.uuid4()) is None


def test_only_one_of_many_workers_gets_the_batch(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: claim(database, model_id), range(16)))
    assert sum(claimed is not None for claimed in claims) == 1


def test_a_later_request_waits_for_the_next_batch(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    assert claim(database, model_id) is not None
    samples.request_deletion(settings, database, 2)
    assert claim(database, model_id) is None
    assert statuses(database) == ["running", "pending"]


def test_a_burst_inside_the_window_becomes_one_batch(settings: Settings, database: Database) -> None:
    patient = settings.model_copy(update={"batch_window_seconds": 3600.0})
    model_id = samples.register_sample(settings, database)
    for person in (1, 2):
        samples.request_deletion(patient, database, person)
    assert claim(database, model_id) is None  # the window has not ended
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=current_time(session)))
    claimed = claim(database, model_id)
    assert claimed is not None
    assert len(claimed.requests) == 2


def test_a_long_window_is_limited_by_the_original_deadline(settings: Settings, database: Database) -> None:
    weekly = settings.model_copy(update={"batch_window_seconds": 7 * 86_400.0})
    samples.register_sample(settings, database)
    deletion = samples.request_deletion(weekly, database, 1).deletion
    latest = deletion.received_at + (deletion.due_at - deletion.received_at) / 10
    with database.writing() as session:
        interventions.extend(session, deletion.id, deletion.due_at + timedelta(days=20), "more time", "operator")
    with database.reading() as session:
        not_before = session.scalars(select(DeletionTarget.not_before)).one()
    assert deletion.received_at + (latest - deletion.received_at) / 2 <= not_before <= latest


def test_an_expired_lease_is_taken_over_and_the_late_worker_is_fenced_off(
    settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    late = claim(database, model_id)
    assert late is not None
    with database.reading() as session:
        assert list(models_to_ring(session)) == []
    expire(database, late.batch_id)
    with database.reading() as session:
        assert list(models_to_ring(session)) == [model_id]
    successor = claim(database, model_id)
    assert successor is not None
    assert successor.forgotten == late.forgotten
    for action in (
        lambda session: renew_lease(session, late.batch_id, 30, "newton", 50),
        lambda session: fail_batch(session, late.batch_id, "late", permanent=True, max_attempts=3),
        lambda session: end_batch(session, late.batch_id, BatchStatus.PUBLISHED),
    ):
        with pytest.raises(LeaseLost), database.writing() as session:
            action(session)
    assert statuses(database) == ["running"]


def test_renewing_keeps_the_lease_and_stores_the_progress(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    claimed = claim(database, model_id)
    assert claimed is not None
    expire(database, claimed.batch_id)
    with database.writing() as session:
        renew_lease(session, claimed.batch_id, 30, "newton", 50)
    assert claim(database, model_id) is None
    with database.reading() as session:
        from service.store.deletions.views import find_view

        target = find_view(session, view.deletion.id, caller=None).targets[0]
        assert (target.phase, target.percent) == ("newton", 50)


def test_a_failed_batch_is_retried_with_growing_delays_and_fails_in_the_end(
    settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    for attempt in range(1, 4):
        claimed = claim(database, model_id)
        assert claimed is not None
        with database.writing() as session:
            fail_batch(session, claimed.batch_id, "disk full", permanent=False, max_attempts=3)
        assert claim(database, model_id) is None  # in backoff, or failed for good
        with database.writing() as session:
            target = session.scalars(select(DeletionTarget)).one()
            assert (target.attempts, target.failure) == (attempt, "disk full")
            assert target.not_before > now() + timedelta(seconds=2**attempt - 1)
            target.not_before = now()
    assert statuses(database) == ["failed"]


def test_a_permanent_failure_is_final_at_once(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    claimed = claim(database, model_id)
    assert claimed is not None
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, "bound above policy", permanent=True, max_attempts=3)
    assert statuses(database) == ["failed"]


def test_a_request_that_kills_its_workers_fails(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    for _ in range(3):
        claimed = claim(database, model_id)
        assert claimed is not None
        expire(database, claimed.batch_id)
    assert claim(database, model_id) is None
    assert statuses(database) == ["failed"]
    with database.reading() as session:
        assert session.scalars(select(DeletionTarget)).one().failure == WORKER_SILENT


def test_a_request_whose_records_are_gone_completes_without_a_worker(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        for record in session.scalars(select(Record).where(Record.record.in_(range(4, 8)))):
            session.delete(record)
    assert claim(database, model_id) is None
    with database.reading() as session:
        deletion = session.get_one(Deletion, view.deletion.id)
        assert deletion.status == "completed"
        assert "earlier deletion" in (deletion.outcome or "")
