from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import DateTime, delete, select
from sqlalchemy.exc import IntegrityError

from service.store.database import Database
from service.store.dialect import UtcDateTime
from service.store.tables import AuditEntry, Base, Deletion, DeletionSubject, Model, Record, Subject, Version, now


def add_model(database: Database) -> uuid.UUID:
    model = Model(id=uuid.uuid4(), name="m", family="f", posterior_kind="variational", config={}, policy={})
    with database.writing() as session:
        session.add(model)
    return model.id


def version(model_id: uuid.UUID, number: int, superseded_at: datetime | None = None) -> Version:
    digests = {"posterior_digest": "p", "dataset_digest": "d"}
    return Version(model_id=model_id, number=number, record_count=1, superseded_at=superseded_at, **digests)


def test_now_is_aware_and_in_utc() -> None:
    assert now().tzinfo is UTC
    assert abs(now() - datetime.now(UTC)) < timedelta(seconds=10)


def test_every_time_column_is_aware() -> None:
    columns = [column for table in Base.metadata.tables.values() for column in table.columns]
    assert not [column for column in columns if isinstance(column.type, DateTime)]
    assert any(isinstance(column.type, UtcDateTime) for column in columns)


def test_a_model_has_one_current_version(database: Database) -> None:
    model_id = add_model(database)
    with database.writing() as session:
        session.add_all([version(model_id, 1, now()), version(model_id, 2, now()), version(model_id, 3)])
    with pytest.raises(IntegrityError), database.writing() as session:
        session.add(version(model_id, 4))


def test_a_day_has_one_summary_and_other_entries_repeat(database: Database) -> None:
    with database.writing() as session:
        for action in ("summary.daily", "batch.failed", "batch.failed"):
            session.add(AuditEntry(actor="sweep", action=action, concerns="2026-01-01", details={}))
    with pytest.raises(IntegrityError), database.writing() as session:
        session.add(AuditEntry(actor="sweep", action="summary.daily", concerns="2026-01-01", details={}))


def test_a_subject_with_records_cannot_be_deleted(database: Database) -> None:
    model_id, subject = add_model(database), Subject(id=uuid.uuid4(), lookup=bytes(32), key=bytes(32))
    with database.writing() as session:
        session.add(subject)
        session.flush()
        session.add(Record(model_id=model_id, record=0, subject_id=subject.id))
    with pytest.raises(IntegrityError), database.writing() as session:
        session.execute(delete(Subject))


def test_a_deleted_subject_leaves_its_commitment_without_a_link(database: Database) -> None:
    subject, deletion_id = Subject(id=uuid.uuid4(), lookup=bytes(32), key=bytes(32)), uuid.uuid4()
    deletion = Deletion(
        id=deletion_id, caller="acme", regulation="gdpr", status="pending", request_id="r", due_at=now()
    )
    with database.writing() as session:
        session.add_all([subject, deletion])
        session.flush()
        session.add(DeletionSubject(deletion_id=deletion_id, commitment="c", subject_id=subject.id))
    with database.writing() as session:
        session.execute(delete(Subject))
    with database.reading() as session:
        row = session.scalars(select(DeletionSubject)).one()
    assert (row.commitment, row.subject_id) == ("c", None)


def test_json_columns_store_null_and_not_the_json_null(database: Database) -> None:
    add_model(database)
    with database.writing() as session:
        model_id = session.scalars(select(Model.id)).one()
        session.add(version(model_id, 1))
    with database.reading() as session:
        assert session.scalars(select(Version.id).where(Version.readiness.is_(None))).one()
