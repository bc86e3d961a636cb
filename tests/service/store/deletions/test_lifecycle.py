from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store import dialect
from service.store.database import Database
from service.store.deletions.lifecycle import ALREADY_ERASED, refresh
from service.store.states import DeletionStatus
from service.store.tables import AuditEntry, Callback, Deletion, DeletionTarget
from tests import samples

URL = "https://compliance.example/hook"


def set_statuses(database: Database, deletion_id: uuid.UUID, statuses: Sequence[str]) -> Deletion:
    """Give the targets these statuses, in the order of their models, and refresh."""
    with database.writing() as session:
        query = select(DeletionTarget).where(DeletionTarget.deletion_id == deletion_id)
        for target, status in zip(session.scalars(query.order_by(DeletionTarget.model_id)), statuses, strict=True):
            target.status = status
        refresh(session, [deletion_id])
    with database.reading() as session:
        return session.get_one(Deletion, deletion_id)


@pytest.mark.parametrize(
    ("statuses", "overall"),
    [
        (["pending", "pending"], DeletionStatus.PENDING),
        (["running", "pending"], DeletionStatus.RUNNING),
        (["completed", "pending"], DeletionStatus.PENDING),
        (["failed", "pending"], DeletionStatus.PENDING),
        (["failed", "completed"], DeletionStatus.FAILED),
        (["cancelled", "completed"], DeletionStatus.CANCELLED),
        (["completed", "completed"], DeletionStatus.COMPLETED),
    ],
)
def test_the_status_follows_from_the_targets(
    settings: Settings, database: Database, statuses: list[str], overall: DeletionStatus
) -> None:
    for _ in statuses:
        samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    deletion = set_statuses(database, deletion_id, statuses)
    assert deletion.status == overall
    assert (deletion.completed_at is not None) == (overall is DeletionStatus.COMPLETED)


def test_a_completed_deletion_without_certificate_tells_why(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    assert set_statuses(database, deletion_id, ["completed"]).outcome == ALREADY_ERASED
    with database.reading() as session:
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.concerns == str(deletion_id)))
        assert list(actions) == ["deletion.received", "deletion.completed"]


def test_only_changes_are_reported_to_callbacks(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(settings, database, 1, callback_urls=[URL]).deletion.id
    for status in ("running", "running", "failed"):
        set_statuses(database, deletion_id, [status])
    with database.reading() as session:
        callbacks = session.scalars(select(Callback).order_by(Callback.sequence)).all()
    assert [(callback.sequence, callback.message["status"]) for callback in callbacks] == [
        (1, "running"),
        (2, "failed"),
    ]


def test_many_deletions_are_refreshed_in_several_statements(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "CHUNK_SIZE", 2)
    samples.register_sample(settings, database)
    ids = [samples.request_deletion(settings, database, person).deletion.id for person in range(5)]
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(status="running"))
        refresh(session, [*ids, *ids])
    with database.reading() as session:
        assert session.scalars(select(Deletion.status)).all() == ["running"] * 5
