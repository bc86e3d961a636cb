from __future__ import annotations

import uuid

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.database import Database
from service.store.errors import NotFound, NotRefreshable
from service.store.models.registry import current_version
from service.store.refreshes.lifecycle import RefreshTerms
from service.store.refreshes.requests import request_refresh
from service.store.tables import AuditEntry
from tests import samples
from tests.service.store.refreshes.worn import claim, worn_model

NEVER_BY_ITSELF = RefreshTerms(below=0.0, lease_seconds=30.0, max_crashes=2)


def test_a_request_starts_one_whatever_the_floor(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database, effective=800.0)
    with database.writing() as session:
        first, second = (request_refresh(session, model_id, "operator").id for _ in range(2))
    assert first == second
    assert claim(database, model_id, NEVER_BY_ITSELF).refresh_id == first
    with database.reading() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "refresh.requested"))
    assert (entry.actor, entry.concerns, entry.details) == ("operator", str(first), {"model": str(model_id)})


def test_a_request_during_a_batch_is_for_the_version_that_it_leaves(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        assert claim_batch(session, model_id, "worker", ClaimTerms(30.0, 3)) is not None
        requested = request_refresh(session, model_id, "operator")
        assert requested.version_id == current_version(session, model_id).id


def test_models_without_chains_are_refused(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with pytest.raises(NotRefreshable, match="only sample sets"), database.writing() as session:
        request_refresh(session, model_id, "operator")
    with pytest.raises(NotFound), database.writing() as session:
        request_refresh(session, uuid.uuid4(), "operator")
