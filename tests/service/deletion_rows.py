"""Deletions inserted directly: many, old or late, as no API call could create them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from service.store.database import Database
from service.store.tables import Deletion, DeletionSubject, DeletionTarget

START = datetime(2026, 1, 1, tzinfo=UTC)


def add_rows(database: Database, count: int, model_id: uuid.UUID | None = None, **columns: Any) -> list[uuid.UUID]:
    """Add `count` deletions, two per minute from START (ties test the order). Return their ids, newest first."""
    rows = [_row(number, **columns) for number in range(count)]
    with database.writing() as session:
        session.add_all(rows)
        session.flush()
        for row in rows:
            session.add(DeletionSubject(deletion_id=row.id, commitment=row.id.hex * 2))
            if model_id is not None:
                times = {"received_at": row.received_at, "not_before": row.received_at}
                target = DeletionTarget(deletion_id=row.id, model_id=model_id, status=row.status, **times)
                session.add(target)
    return [row.id for row in sorted(rows, key=lambda row: (row.received_at, row.id), reverse=True)]


def _row(number: int, **columns: Any) -> Deletion:
    received_at = START + timedelta(minutes=number // 2)
    defaults = {
        "caller": "acme-compliance",
        "regulation": "gdpr",
        "status": "pending",
        "request_id": f"r{number}",
    }
    times = {"received_at": received_at, "due_at": received_at + timedelta(days=31)}
    return Deletion(id=uuid.uuid4(), **{**defaults, **times, **columns})
