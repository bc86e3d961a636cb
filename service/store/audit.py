"""The audit trail: one entry for each thing that matters, in the transaction of the thing itself."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from service.store.tables import AuditEntry


def record(session: Session, actor: str, action: str, concerns: object, **details: Any) -> None:
    """Write an entry. `details` holds identifiers, commitments and digests, never an identity."""
    session.add(AuditEntry(actor=actor, action=action, concerns=str(concerns), details=details))
