from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.batches.fence import holds_refresh, is_idle, is_running, require_running
from service.store.batches.lifecycle import ClaimTerms, claim_batch, end_batch
from service.store.database import Database
from service.store.errors import LeaseLost
from service.store.refreshes.lifecycle import release_refresh
from service.store.states import BatchStatus
from service.store.tables import Batch, now
from tests import samples
from tests.service.store.refreshes.worn import claim as claim_refresh
from tests.service.store.refreshes.worn import worn_model

TERMS = ClaimTerms(lease_seconds=30.0, max_attempts=5)


def claim(database: Database, model_id: uuid.UUID) -> uuid.UUID:
    with database.writing() as session:
        claimed = claim_batch(session, model_id, "worker", TERMS)
    assert claimed is not None
    return claimed.batch_id


def test_a_batch_that_was_taken_over_does_not_run(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    first = claim(database, model_id)
    with database.writing() as session:
        require_running(session, first)
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    second = claim(database, model_id)
    with database.writing() as session:
        assert not is_running(session, first)
        require_running(session, second)
        with pytest.raises(LeaseLost, match="was taken over"):
            require_running(session, first)


def test_a_model_is_idle_while_none_of_its_batches_runs(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        assert is_idle(session, model_id)
        assert not is_idle(session, uuid.uuid4())  # its registration may be about to finish
    batch_id = claim(database, model_id)
    with database.writing() as session:
        assert not is_idle(session, model_id)
        end_batch(session, batch_id, BatchStatus.FAILED)
        assert is_idle(session, model_id)


def test_a_refresh_is_held_by_its_last_claim_only(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    first = claim_refresh(database, model_id)
    with database.writing() as session:
        assert holds_refresh(session, first.claim_id) is True
        release_refresh(session, first)
        assert holds_refresh(session, first.claim_id) is False
    second = claim_refresh(database, model_id)
    with database.writing() as session:
        assert [holds_refresh(session, claim.claim_id) for claim in (first, second)] == [False, True]
