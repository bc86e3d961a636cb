"""Batches as shown to people: jobs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.errors import NotFound
from service.store.paging import Page, Position, Window, make_page, newest_first
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
    """Only for a single job, at most MOST_DELETIONS_SHOWN."""


def find_job(session: Session, batch_id: uuid.UUID) -> JobView:
    batch = session.get(Batch, batch_id)
    if batch is None:
        raise NotFound(f"job {batch_id} not found; GET /api/v1/jobs lists all jobs")
    details = session.scalar(
        select(AuditEntry.details).where(AuditEntry.concerns == str(batch_id), AuditEntry.action == "batch.claimed")
    )
    deletion_ids = sorted(uuid.UUID(text) for text in details["deletions"]) if details else []
    return JobView(batch, len(deletion_ids), deletion_ids[:MOST_DELETIONS_SHOWN])


def find_job_page(session: Session, criteria: JobFilter, window: Window) -> Page[JobView]:
    query = select(Batch)
    if criteria.statuses:
        query = query.where(Batch.status.in_(criteria.statuses))
    if criteria.model_id is not None:
        query = query.where(Batch.model_id == criteria.model_id)
    batches = session.scalars(newest_first(query, Batch.started_at, Batch.id, window)).all()
    counts = _deletion_counts(session, [batch.id for batch in batches])
    views = [JobView(batch, counts.get(str(batch.id), 0)) for batch in batches]
    return make_page(views, window, lambda view: Position(view.batch.started_at, view.batch.id))


def _deletion_counts(session: Session, batch_ids: Iterable[uuid.UUID]) -> dict[str, int]:
    """Count from the audit entries of claims: a deletion's row only knows the last batch that claimed it."""
    rows = session.execute(
        select(AuditEntry.concerns, func.json_array_length(AuditEntry.details["deletions"])).where(
            AuditEntry.concerns.in_([str(batch_id) for batch_id in batch_ids]), AuditEntry.action == "batch.claimed"
        )
    )
    return dict(rows.all())
