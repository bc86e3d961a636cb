from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.batches import destruction
from service.store.batches.destruction import destroy_model
from service.store.batches.lifecycle import Claim, claim_batch
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree
from service.store.errors import KeyInactive, LeaseLost
from service.store.signing import keys
from service.store.signing.keys import open_signer
from service.store.tables import Artifact, AuditEntry, Batch, Certificate, Model, Record, Version, now
from tests import samples
from tests.service.routes.test_jobs import TERMS, claim
from tests.service.store.batches.test_publication import count


def claimed_everybody(settings: Settings, database: Database) -> Claim:
    """Register a model and claim the deletion of everybody in it."""
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, *range(samples.PEOPLE))
    return claim(database, model_id)


def destroy_claimed(settings: Settings, database: Database, claimed: Claim) -> Sequence[uuid.UUID]:
    """Destroy the model as a worker would."""
    content = open_artifacts(settings).get(claimed.model_id, claimed.dataset_digest)
    tree = DatasetTree.from_dataset(load_dataset(content))
    with database.writing() as session:
        return destroy_model(session, claimed, tree, open_signer(settings, database))


def test_only_a_batch_that_leaves_too_few_records_ends_the_model(settings: Settings, database: Database) -> None:
    assert claimed_everybody(settings, database).ends_model
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, *range(samples.PEOPLE - 1), model_ids=[model_id])
    assert not claim(database, model_id).ends_model


def test_the_last_version_ends_with_the_model(settings: Settings, database: Database) -> None:
    claimed = claimed_everybody(settings, database)
    (certificate_id,) = destroy_claimed(settings, database, claimed)
    with database.reading() as session:
        model, version = session.get_one(Model, claimed.model_id), session.scalars(select(Version)).one()
        certificate = session.get_one(Certificate, certificate_id)
        due = set(session.scalars(select(Artifact.destroy_at)))
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "model.destroyed")).one()
    assert version.superseded_at == model.destroyed_at is not None
    assert (certificate.level, certificate.epsilon, certificate.version_id) == ("destroyed", None, version.id)
    assert all(destroy_at <= certificate.issued_at for destroy_at in due)
    assert entry.details["records"] == samples.PEOPLE * samples.ROWS_EACH


def test_a_batch_that_was_taken_over_destroys_nothing(settings: Settings, database: Database) -> None:
    claimed = claimed_everybody(settings, database)
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
        successor = claim_batch(session, claimed.model_id, "worker-2", TERMS)
    assert successor is not None
    with pytest.raises(LeaseLost):
        destroy_claimed(settings, database, claimed)
    assert (count(database, Certificate), count(database, Record)) == (0, 40)
    destroy_claimed(settings, database, successor)
    assert (count(database, Certificate), count(database, Record)) == (1, 0)


def test_a_failure_at_the_end_undoes_everything(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = claimed_everybody(settings, database)

    def reject(*_arguments: object) -> None:
        raise RuntimeError("rejected")

    with monkeypatch.context() as patch:
        patch.setattr(destruction, "log_and_verify", reject)
        with pytest.raises(RuntimeError, match="rejected"):
            destroy_claimed(settings, database, claimed)
    with database.reading() as session:
        assert session.get_one(Model, claimed.model_id).destroyed_at is None
        assert set(session.scalars(select(Artifact.destroy_at))) == {None}
    assert (count(database, Certificate), count(database, Record)) == (0, 40)
    destroy_claimed(settings, database, claimed)


def test_a_retired_key_destroys_nothing(settings: Settings, database: Database) -> None:
    claimed = claimed_everybody(settings, database)
    signer = open_signer(settings, database)
    with database.writing() as session:
        keys.retire(session, signer.key_id, "test")
    tree = DatasetTree.from_dataset(
        load_dataset(open_artifacts(settings).get(claimed.model_id, claimed.dataset_digest))
    )
    with pytest.raises(KeyInactive), database.writing() as session:
        destroy_model(session, claimed, tree, signer)
    assert count(database, Record) == 40
