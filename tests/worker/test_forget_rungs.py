"""Each rung that a batch tried is an entry of the audit trail, whether it was published or not."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.database import Database
from service.store.tables import AuditEntry, Batch
from tests import samples
from worker.context import WorkerContext
from worker.forget import forget_pending


def rungs(database: Database) -> list[dict[str, Any]]:
    with database.reading() as session:
        batch = session.scalars(select(Batch)).one()
        query = select(AuditEntry).where(AuditEntry.action == "rung.tried").order_by(AuditEntry.id)
        entries = session.scalars(query).all()
    assert {(entry.concerns, entry.actor) for entry in entries} == {(str(batch.id), batch.worker)}
    return [entry.details for entry in entries]


def test_what_was_published_is_told_with_its_bound(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    told = rungs(database)
    assert told[-1]["level"] == "proved"
    assert 0 <= told[-1]["bound"] <= 1e-6
    assert all(set(one) == {"rung", "bound", "level", "seconds"} and one["seconds"] > 0 for one in told)
    with database.reading() as session:
        unplaced = session.scalars(select(AuditEntry.action).where(AuditEntry.leaf_index.is_(None))).all()
    assert "certificate.issued" not in unplaced
    assert "rung.tried" not in unplaced


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_was_tried_in_vain_is_told_too(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database, epsilon=1e-40, rungs=["influence", "newton"])
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    told = rungs(database)
    assert [one["rung"] for one in told] == ["influence", "newton"]
    assert all(one["bound"] is None or one["bound"] > 1e-40 for one in told)
