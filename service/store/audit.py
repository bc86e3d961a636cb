"""The audit trail: one entry for each thing that matters, in the transaction of the thing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Table, insert
from sqlalchemy.orm import Session

from service.store.tables import AuditEntry


def record(session: Session, actor: str, action: str, concerns: object, **details: Any) -> None:
    """Write an entry. `details` holds identifiers, commitments and digests, never an identity."""
    session.add(AuditEntry(actor=actor, action=action, concerns=str(concerns), details=details))


def record_rungs(session: Session, actor: str, batch_id: object, rungs: Sequence[Mapping[str, Any]]) -> None:
    """Write an entry for each way of forgetting that a batch tried, in order, with the bound it reached."""
    for rung in rungs:
        told = {"rung": rung["name"], "bound": rung["epsilon"], "level": rung["level"], "seconds": rung["seconds"]}
        record(session, actor, "rung.tried", batch_id, **told)


def record_each(session: Session, actor: str, action: str, details: Mapping[Any, Mapping[str, Any]]) -> None:
    """Write an entry for each thing that `details` concerns, in one statement."""
    common = {"actor": actor, "action": action}
    rows = [{**common, "concerns": str(concerns), "details": dict(told)} for concerns, told in details.items()]
    if rows:
        session.execute(insert(cast(Table, AuditEntry.__table__)), rows)
