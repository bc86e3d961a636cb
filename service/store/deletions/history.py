"""What happened to one deletion, from the audit trail: its own entries, its batches' and its certificates'."""

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

MOST_EVENTS = 1_000
MOST_BATCHES = 5_000
CLOCK_SKEW = timedelta(hours=1)
"""A worker on another machine may believe that it began before the request came."""
ENDED = (DeletionStatus.COMPLETED, DeletionStatus.FAILED, DeletionStatus.CANCELLED)
OTHERS = ("deletions",)
"""Details that name other people's deletions: those of the same batch."""


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
    """The newest MOST_EVENTS events, oldest first. The caller has checked who may see the deletion."""
    # The status comes first: a change and its entry are committed together, so whoever sees the one sees the other.
    deletion = session.get_one(Deletion, deletion_id, populate_existing=True)
    certificates = session.scalars(select(Certificate.id).where(Certificate.deletion_id == deletion_id)).all()
    concerned = [str(deletion_id), *map(str, certificates), *_batches_naming(session, deletion)]
    entries = session.scalars(
        select(AuditEntry).where(AuditEntry.concerns.in_(concerned)).order_by(AuditEntry.id.desc()).limit(MOST_EVENTS)
    ).all()
    return History(deletion.status, [_event(entry) for entry in reversed(entries)])


def _batches_naming(session: Session, deletion: Deletion) -> Sequence[str]:
    """A target knows its latest batch only; those before it are known by the entry of their claim."""
    models = select(DeletionTarget.model_id).where(DeletionTarget.deletion_id == deletion.id)
    query = select(Batch.id).where(Batch.model_id.in_(models), Batch.started_at >= deletion.received_at - CLOCK_SKEW)
    if deletion.completed_at is not None:
        query = query.where(Batch.started_at <= deletion.completed_at + CLOCK_SKEW)
    candidates = session.scalars(query.order_by(Batch.started_at.desc()).limit(MOST_BATCHES)).all()
    return session.scalars(
        select(AuditEntry.concerns).where(
            AuditEntry.concerns.in_([str(batch_id) for batch_id in candidates]),
            AuditEntry.action == "batch.claimed",
            cast(AuditEntry.details, Text).contains(str(deletion.id), autoescape=True),
        )
    ).all()


def _event(entry: AuditEntry) -> Event:
    details = {name: value for name, value in entry.details.items() if name not in OTHERS}
    return Event(entry.id, entry.at, entry.actor, entry.action, details)
