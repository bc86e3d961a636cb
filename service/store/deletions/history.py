"""History of a deletion from the audit trail: its own entries and those of its batches and certificates."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from service.store.states import DeletionStatus
from service.store.tables import AuditEntry, Batch, Certificate, Deletion, DeletionTarget

MAX_EVENTS = 1_000
MAX_BATCHES = 5_000
CLOCK_SKEW = timedelta(hours=1)
"""By the clock of another machine, a worker may have started before the request arrived."""
ENDED = (DeletionStatus.COMPLETED, DeletionStatus.FAILED, DeletionStatus.CANCELLED)
HIDDEN_DETAILS = ("deletions",)
"""Details that name other deletions of the same batch, which may belong to other callers."""


@dataclass(frozen=True)
class Event:
    id: int
    at: datetime
    actor: str
    action: str
    details: dict[str, Any]


@dataclass(frozen=True)
class History:
    status: str
    events: Sequence[Event]

    @property
    def ended(self) -> bool:
        return self.status in ENDED


def find_history(session: Session, deletion_id: uuid.UUID) -> History:
    """Return the newest MAX_EVENTS events, oldest first. Access to the deletion must have been checked.

    The status is read first: a change and its entry are committed together, so the entry is visible too.
    """
    deletion = session.get_one(Deletion, deletion_id, populate_existing=True)
    certificates = session.scalars(select(Certificate.id).where(Certificate.deletion_id == deletion_id)).all()
    object_ids = [str(deletion_id), *map(str, certificates), *_find_batches(session, deletion)]
    entries = session.scalars(
        select(AuditEntry).where(AuditEntry.concerns.in_(object_ids)).order_by(AuditEntry.id.desc()).limit(MAX_EVENTS)
    ).all()
    return History(deletion.status, [_event(entry) for entry in reversed(entries)])


def _find_batches(session: Session, deletion: Deletion) -> Sequence[str]:
    """Return all batches of a deletion. A target refers to its latest only; entries of claims name the others."""
    models = select(DeletionTarget.model_id).where(DeletionTarget.deletion_id == deletion.id)
    query = select(Batch.id).where(Batch.model_id.in_(models), Batch.started_at >= deletion.received_at - CLOCK_SKEW)
    if deletion.completed_at is not None:
        query = query.where(Batch.started_at <= deletion.completed_at + CLOCK_SKEW)
    candidates = session.scalars(query.order_by(Batch.started_at.desc()).limit(MAX_BATCHES)).all()
    return session.scalars(
        select(AuditEntry.concerns).where(
            AuditEntry.concerns.in_([str(batch_id) for batch_id in candidates]),
            AuditEntry.action == "batch.claimed",
            cast(AuditEntry.details, Text).contains(str(deletion.id), autoescape=True),
        )
    ).all()


def _event(entry: AuditEntry) -> Event:
    details = {name: value for name, value in entry.details.items() if name not in HIDDEN_DETAILS}
    return Event(entry.id, entry.at, entry.actor, entry.action, details)
