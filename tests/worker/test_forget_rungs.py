"""The audit trail has an entry for each rung that a batch tried, published or not."""

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


def test_a_published_rung_is_recorded_with_its_bound(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    entries = rungs(database)
    assert entries[-1]["level"] == "proved"
    assert 0 <= entries[-1]["bound"] <= 1e-6
    assert all(set(entry) == {"rung", "bound", "level", "seconds"} and entry["seconds"] > 0 for entry in entries)
    with database.reading() as session:
        unplaced = session.scalars(select(AuditEntry.action).where(AuditEntry.leaf_index.is_(None))).all()
    assert "certificate.issued" not in unplaced
    assert "rung.tried" not in unplaced


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_rungs_of_a_failed_batch_are_recorded(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database, epsilon=1e-40, rungs=["influence", "newton"])
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    entries = rungs(database)
    assert [entry["rung"] for entry in entries] == ["influence", "newton"]
    assert all(entry["bound"] is None or entry["bound"] > 1e-40 for entry in entries)
