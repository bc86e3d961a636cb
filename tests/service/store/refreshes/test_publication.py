from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.database import Database
from service.store.errors import LeaseLost
from service.store.models.registry import DrawCount, current_version
from service.store.refreshes.files import save_refresh_file
from service.store.refreshes.lifecycle import RefreshClaim, release_refresh
from service.store.refreshes.publication import RefreshResult, publish_refresh
from service.store.tables import Artifact, Refresh, Version, now
from tests import samples
from tests.service.store.refreshes.worn import READY, claim, worn_model


def save(settings: Settings, database: Database, claimed: RefreshClaim, content: bytes = b"even") -> RefreshResult:
    digest = save_refresh_file(database, open_artifacts(settings), claimed, "posterior", content)
    return RefreshResult(digest, DrawCount(800, 800.0), READY)


def publish(database: Database, claimed: RefreshClaim, result: RefreshResult, retention: float = 0.0) -> None:
    with database.writing() as session:
        publish_refresh(session, claimed, result, retention)


def test_the_posterior_before_is_retained_as_long_as_any_superseded_one(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    result = save(settings, database, claimed)
    publish(database, claimed, result, retention=3600.0)
    with database.reading() as session:
        before = session.get_one(Artifact, (model_id, claimed.posterior_digest))
        assert before.destroy_at is not None
        assert timedelta(minutes=59) < before.destroy_at - now() < timedelta(minutes=61)
        assert session.get_one(Artifact, (model_id, result.posterior_digest)).destroy_at is None
        assert session.get_one(Artifact, (model_id, claimed.dataset_digest)).destroy_at is None
        version = current_version(session, model_id)
        assert (version.number, version.readiness, version.effective_draws) == (2, READY, 800.0)


def test_a_draw_for_draw_equal_posterior_is_kept(settings: Settings, database: Database) -> None:
    """A refresh whose bytes are those before must not schedule the current file."""
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    content = open_artifacts(settings).get(model_id, claimed.posterior_digest)
    publish(database, claimed, save(settings, database, claimed, content))
    with database.reading() as session:
        assert session.get_one(Artifact, (model_id, claimed.posterior_digest)).destroy_at is None


def test_a_worker_that_lost_the_refresh_cannot_publish(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    late = claim(database, model_id)
    result = save(settings, database, late)
    with database.writing() as session:
        release_refresh(session, late)
    claim(database, model_id)
    with pytest.raises(LeaseLost):
        publish(database, late, result)
    with database.reading() as session:
        assert current_version(session, model_id).number == 1


def test_nothing_is_published_beside_a_batch(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    result = save(settings, database, claimed)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        claim_batch(session, model_id, "worker", ClaimTerms(30.0, 3))
    with pytest.raises(LeaseLost, match="gave way"):
        publish(database, claimed, result)


def test_a_replaced_version_cannot_be_refreshed(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    result = save(settings, database, claimed)
    with database.writing() as session:  # no code path leads here: a claim of a batch ends the refresh
        before = current_version(session, model_id)
        before.superseded_at = now()
        session.flush()
        digests = {"posterior_digest": "p", "dataset_digest": "d"}
        session.add(Version(model_id=model_id, number=2, record_count=1, **digests))
    with pytest.raises(LeaseLost, match="replaced"):
        publish(database, claimed, result)
    with database.reading() as session:
        assert session.scalars(select(Refresh.status)).all() == ["running"]
