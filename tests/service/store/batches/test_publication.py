from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from service.settings import Settings
from service.store.batches.lifecycle import Claim, claim_batch
from service.store.database import Database
from service.store.errors import LeaseLost, PolicyMissed
from service.store.models.registry import current_version
from service.store.tables import (
    Artifact,
    AuditEntry,
    Batch,
    Certificate,
    Checkpoint,
    Deletion,
    Record,
    Subject,
    Version,
    now,
)
from tests import samples
from tests.service.routes.test_jobs import TERMS, claim, publish_all


def count(database: Database, table: type[object]) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def claimed_sample(settings: Settings, database: Database) -> Claim:
    """Register a model and claim the deletion of one person, who has four records."""
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    return claim(database, model_id)


def test_publishing_makes_the_new_version_current(settings: Settings, database: Database) -> None:
    claimed = claimed_sample(settings, database)
    publish_all(settings, database, claimed)
    with database.reading() as session:
        old = session.scalars(select(Version).where(Version.number == 1)).one()
        new = current_version(session, claimed.model_id)
        scheduled = dict(session.execute(select(Artifact.digest, Artifact.destroy_at)).all())
        batch = session.get_one(Batch, claimed.batch_id)
    assert old.superseded_at is not None
    assert (new.number, new.record_count) == (2, samples.PEOPLE * samples.ROWS_EACH - samples.ROWS_EACH)
    assert (scheduled[new.posterior_digest], scheduled[new.dataset_digest]) == (None, None)
    for digest in (old.posterior_digest, old.dataset_digest):
        assert scheduled[digest] <= now()
    assert (batch.status, batch.phase, batch.percent, batch.device) == ("published", "published", 100.0, "cpu")
    assert [rung["name"] for rung in batch.rungs or []] == ["influence", "newton"]


def test_publishing_erases_the_records_and_the_subjects_key(settings: Settings, database: Database) -> None:
    claimed = claimed_sample(settings, database)
    publish_all(settings, database, claimed)
    with database.reading() as session:
        remaining = set(session.scalars(select(Record.record)))
        lookups = set(session.scalars(select(Subject.lookup)))
        details = session.scalars(select(AuditEntry.details).where(AuditEntry.action == "records.erased")).one()
    assert remaining == set(range(40)) - {4, 5, 6, 7}
    assert samples.lookup(settings, 1) not in lookups
    assert details == {"records": 4, "keys_destroyed": 1}


def test_publishing_completes_certifies_and_logs_each_deletion(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_ids = {samples.request_deletion(settings, database, number).deletion.id for number in (1, 2)}
    certificate_ids = publish_all(settings, database, claim(database, model_id))
    with database.reading() as session:
        certificates = session.scalars(select(Certificate)).all()
        statuses = set(session.scalars(select(Deletion.status)))
        unsequenced = session.scalar(select(func.count()).where(AuditEntry.leaf_index.is_(None)))
    assert {certificate.id for certificate in certificates} == set(certificate_ids)
    assert {certificate.deletion_id for certificate in certificates} == deletion_ids
    assert statuses == {"completed"}
    assert (unsequenced, count(database, Checkpoint)) == (0, 1)


@pytest.mark.parametrize(("epsilon", "level"), [(2e-6, "proved"), (1e-8, "estimated")])
def test_a_missed_policy_publishes_nothing(settings: Settings, database: Database, epsilon: float, level: str) -> None:
    claimed = claimed_sample(settings, database)
    with pytest.raises(PolicyMissed, match=r"requires 1e-06 at level proved; nothing was published\. Tried: influence"):
        publish_all(settings, database, claimed, epsilon, level)  # type: ignore[arg-type]
    assert (count(database, Version), count(database, Certificate), count(database, Record)) == (1, 0, 40)
    with database.reading() as session:
        assert session.get_one(Batch, claimed.batch_id).status == "running"


def test_a_bound_on_the_stored_draws_is_published_only_where_the_policy_allows_it(
    settings: Settings, database: Database
) -> None:
    claimed = claimed_sample(settings, database)
    with pytest.raises(PolicyMissed, match="compares with the stored draws, but the policy requires the posterior"):
        publish_all(settings, database, claimed, reference_kind="stored draws")
    assert (count(database, Version), count(database, Certificate)) == (1, 0)
    publish_all(settings, database, claimed, reference_kind="posterior")
    assert (count(database, Version), count(database, Certificate)) == (2, 1)


def test_a_batch_that_was_taken_over_publishes_nothing(settings: Settings, database: Database) -> None:
    claimed = claimed_sample(settings, database)
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
        successor = claim_batch(session, claimed.model_id, "worker-2", TERMS)
    assert successor is not None
    with pytest.raises(LeaseLost, match="its result is discarded"):
        publish_all(settings, database, claimed)
    assert (count(database, Version), count(database, Certificate)) == (1, 0)
    publish_all(settings, database, successor)
    assert (count(database, Version), count(database, Certificate)) == (2, 1)


def test_a_subject_with_records_in_another_model_keeps_its_key(settings: Settings, database: Database) -> None:
    first, _ = (samples.register_sample(settings, database) for _ in range(2))
    samples.request_deletion(settings, database, 1, model_ids=[first])
    publish_all(settings, database, claim(database, first))
    with database.reading() as session:
        subject_ids = session.scalars(select(Subject.id).where(Subject.lookup == samples.lookup(settings, 1))).all()
        owned = select(Record.model_id).where(Record.subject_id.in_(subject_ids)).distinct()
        models: list[uuid.UUID] = list(session.scalars(owned))
    assert len(subject_ids) == 1
    assert first not in models
    assert len(models) == 1
