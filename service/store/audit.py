"""Audit trail: one entry per event, written in the transaction of the event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Table, insert
from sqlalchemy.orm import Session

from service.store.tables import AuditEntry
from vocabulary.bound import Rung


def record(session: Session, actor: str, action: str, concerns: object, **details: Any) -> None:
    """Write an entry. `details` contains identifiers, commitments and digests, never an identity."""
    session.add(AuditEntry(actor=actor, action=action, concerns=str(concerns), details=details))


def record_rungs(session: Session, actor: str, batch_id: object, rungs: Sequence[Rung]) -> None:
    """Write an entry for each way of forgetting that a batch tried, in order, with the bound it reached."""
    for rung in rungs:
        details = {"rung": rung.name, "bound": rung.epsilon, "level": rung.level, "seconds": rung.seconds}
        record(session, actor, "rung.tried", batch_id, **details)


def record_each(session: Session, actor: str, action: str, details: Mapping[Any, Mapping[str, Any]]) -> None:
    """Write one entry per key of `details`, which maps what an entry concerns to its details, in one statement."""
    shared = {"actor": actor, "action": action}
    rows = [{**shared, "concerns": str(concerns), "details": dict(values)} for concerns, values in details.items()]
    if rows:
        session.execute(insert(cast(Table, AuditEntry.__table__)), rows)
