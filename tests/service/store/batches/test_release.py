from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.batches.lifecycle import BatchStatus, Claim, ClaimTerms, claim_batch, end_batch, renew_lease
from service.store.batches.release import WORKER_STOPPED, release_batches
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.errors import LeaseLost
from service.store.tables import AuditEntry, Batch, DeletionTarget, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30.0, max_attempts=1)


def claim(database: Database, model_id: uuid.UUID, worker: str) -> Claim | None:
    with database.writing() as session:
        return claim_batch(session, model_id, worker, TERMS)


def test_released_deletions_are_pending_without_a_lost_attempt(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    released = claim(database, model_id, "host:1")
    assert released is not None
    other_model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 2)
    other_claim = claim(database, other_model_id, "host:12")
    assert other_claim is not None
    with database.writing() as session:
        assert release_batches(session, "host:1") == [model_id]
    with database.writing() as session:
        assert release_batches(session, "host:1") == []
    with database.reading() as session:
        assert session.get_one(Batch, other_claim.batch_id).status == "running"
        batch = session.get_one(Batch, released.batch_id)
        assert (batch.status, batch.failure) == ("abandoned", WORKER_STOPPED)
        assert batch.finished_at is not None
        assert now() - batch.finished_at < timedelta(minutes=1)
        target = session.get_one(DeletionTarget, (view.deletion.id, model_id))
        assert (target.status, target.attempts, target.failure) == ("pending", 0, WORKER_STOPPED)
        assert target.not_before <= now()
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "pending"
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "batch.given_back"))
    assert (entry.actor, entry.concerns, entry.details) == (
        "host:1",
        str(released.batch_id),
        {"deletions": [str(view.deletion.id)]},
    )
    second = claim(database, model_id, "host:12")
    assert second is not None
    assert len(second.requests) == 2  # also the request that concerns both models


def test_a_worker_cannot_continue_a_released_batch(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    released = claim(database, model_id, "host:1")
    assert released is not None
    with database.writing() as session:
        release_batches(session, "host:1")
    with pytest.raises(LeaseLost), database.writing() as session:
        renew_lease(session, released.batch_id, 30.0, "influence", 50.0)
    with pytest.raises(LeaseLost), database.writing() as session:
        end_batch(session, released.batch_id, BatchStatus.PUBLISHED)
