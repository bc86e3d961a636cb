"""Jobs: what people may know of batches."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.errors import NotFound
from service.store.paging import Page, Position, Window, cut, newest_first
from service.store.states import BatchStatus
from service.store.tables import AuditEntry, Batch

MOST_DELETIONS_SHOWN = 1000


@dataclass(frozen=True)
class JobFilter:
    statuses: Sequence[BatchStatus] = ()
    model_id: uuid.UUID | None = None


@dataclass(frozen=True)
class JobView:
    batch: Batch
    deletion_count: int
    deletion_ids: Sequence[uuid.UUID] = ()
    """Only of a job that is looked at by itself, and not more than MOST_DELETIONS_SHOWN."""


def find(session: Session, batch_id: uuid.UUID) -> JobView:
    batch = session.get(Batch, batch_id)
    if batch is None:
        raise NotFound(f"there is no job {batch_id}; GET /api/v1/jobs lists them")
    details = session.scalar(
        select(AuditEntry.details).where(AuditEntry.concerns == str(batch_id), AuditEntry.action == "batch.claimed")
    )
    held = sorted(uuid.UUID(text) for text in details["deletions"]) if details else []
    return JobView(batch, len(held), held[:MOST_DELETIONS_SHOWN])


def page(session: Session, wanted: JobFilter, window: Window) -> Page[JobView]:
    query = select(Batch)
    if wanted.statuses:
        query = query.where(Batch.status.in_(wanted.statuses))
    if wanted.model_id is not None:
        query = query.where(Batch.model_id == wanted.model_id)
    batches = session.scalars(newest_first(query, Batch.started_at, Batch.id, window)).all()
    counts = _deletion_counts(session, [batch.id for batch in batches])
    views = [JobView(batch, counts.get(str(batch.id), 0)) for batch in batches]
    return cut(views, window, lambda view: Position(view.batch.started_at, view.batch.id))


def _deletion_counts(session: Session, batch_ids: Iterable[uuid.UUID]) -> dict[str, int]:
    """From the log of claims: a deletion's own row only knows the last batch that took it."""
    rows = session.execute(
        select(AuditEntry.concerns, func.json_array_length(AuditEntry.details["deletions"])).where(
            AuditEntry.concerns.in_([str(batch_id) for batch_id in batch_ids]), AuditEntry.action == "batch.claimed"
        )
    )
    return dict(rows.all())
