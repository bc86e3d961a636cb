from __future__ import annotations

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.artifacts.leftovers import collect_leftovers
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import destroy_due
from service.store.batches.lifecycle import ClaimTerms, claim_batch, fail_batch
from service.store.database import Database
from service.store.errors import LeaseLost
from service.store.refreshes.files import save_refresh_file
from service.store.refreshes.lifecycle import release_refresh
from service.store.tables import Artifact, DeletionTarget, Refresh, now
from tests import samples
from tests.service.store.refreshes.worn import claim, worn_model


def test_a_checkpoint_is_kept_until_the_next_one(settings: Settings, database: Database) -> None:
    model_id, artifacts = worn_model(settings, database), open_artifacts(settings)
    claimed = claim(database, model_id)
    first = save_refresh_file(database, artifacts, claimed, "checkpoint", b"first")
    assert destroy_due(database, artifacts) == 0
    second = save_refresh_file(database, artifacts, claimed, "checkpoint", b"second")
    assert destroy_due(database, artifacts) == 1
    with database.reading() as session:
        assert session.get_one(Artifact, (model_id, first)).destroyed_at is not None
        assert session.get_one(Refresh, claimed.refresh_id).checkpoint_digest == second
    assert artifacts.get(model_id, second) == b"second"
    assert save_refresh_file(database, artifacts, claimed, "checkpoint", b"second") == second
    assert destroy_due(database, artifacts) == 0
    with database.writing() as session:
        release_refresh(session, claimed)
    assert claim(database, model_id).checkpoint_digest == second


def test_leftovers_of_failed_batches_are_collected_without_the_checkpoint(
    settings: Settings, database: Database
) -> None:
    model_id, artifacts = worn_model(settings, database), open_artifacts(settings)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        batch = claim_batch(session, model_id, "worker", ClaimTerms(30.0, 3))
        assert batch is not None
        fail_batch(session, batch.batch_id, "it broke", permanent=False, max_attempts=3)
        session.execute(update(DeletionTarget).values(not_before=now().replace(year=now().year + 1)))
    leftover = artifacts.put(model_id, b"of the failed batch")
    checkpoint = save_refresh_file(database, artifacts, claim(database, model_id), "checkpoint", b"chains")
    assert collect_leftovers(database, artifacts) == 1
    names = {file.name for file in artifacts.files(model_id)}
    assert checkpoint in names
    assert leftover not in names


def test_a_worker_that_lost_the_refresh_leaves_no_file(settings: Settings, database: Database) -> None:
    model_id, artifacts = worn_model(settings, database), open_artifacts(settings)
    late = claim(database, model_id)
    with database.writing() as session:
        release_refresh(session, late)
    successor = claim(database, model_id)
    before = set(artifacts.files(model_id))
    with pytest.raises(LeaseLost):
        save_refresh_file(database, artifacts, late, "checkpoint", b"late")
    assert set(artifacts.files(model_id)) == before
    save_refresh_file(database, artifacts, successor, "checkpoint", b"in time")
