"""Batches and refreshes as shown to people: jobs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.errors import NotFound
from service.store.paging import Page, Position, Window, make_page, newest_first
from service.store.states import BatchStatus, RefreshStatus
from service.store.tables import AuditEntry, Batch, Refresh

MOST_DELETIONS_SHOWN = 1000

Work = TypeVar("Work", Batch, Refresh)


@dataclass(frozen=True)
class JobFilter:
    statuses: Sequence[BatchStatus | RefreshStatus] = ()
    model_id: uuid.UUID | None = None


@dataclass(frozen=True)
class JobView:
    work: Batch | Refresh
    deletion_count: int = 0
    deletion_ids: Sequence[uuid.UUID] = ()
    """Only for a single job, at most MOST_DELETIONS_SHOWN."""


def find_job(session: Session, batch_id: uuid.UUID) -> JobView:
    batch = session.get(Batch, batch_id)
    if batch is None:
        refresh = session.get(Refresh, batch_id)
        if refresh is not None:
            return JobView(refresh)
        raise NotFound(f"job {batch_id} not found; GET /api/v1/jobs lists all jobs")
    details = session.scalar(
        select(AuditEntry.details).where(AuditEntry.concerns == str(batch_id), AuditEntry.action == "batch.claimed")
    )
    deletion_ids = sorted(uuid.UUID(text) for text in details["deletions"]) if details else []
    return JobView(batch, len(deletion_ids), deletion_ids[:MOST_DELETIONS_SHOWN])


def find_job_page(session: Session, criteria: JobFilter, window: Window) -> Page[JobView]:
    """Return batches and refreshes, newest first. A page of each holds all that a page of both needs."""
    batches = _find_page(session, Batch, criteria, window)
    counts = _deletion_counts(session, [batch.id for batch in batches])
    views = [JobView(batch, counts.get(str(batch.id), 0)) for batch in batches]
    views += [JobView(refresh) for refresh in _find_page(session, Refresh, criteria, window)]
    views.sort(key=lambda view: (view.work.started_at, view.work.id), reverse=True)
    return make_page(views[: window.limit + 1], window, lambda view: Position(view.work.started_at, view.work.id))


def _find_page(session: Session, table: type[Work], criteria: JobFilter, window: Window) -> Sequence[Work]:
    query = select(table)
    if criteria.statuses:
        query = query.where(table.status.in_(criteria.statuses))
    if criteria.model_id is not None:
        query = query.where(table.model_id == criteria.model_id)
    return session.scalars(newest_first(query, table.started_at, table.id, window)).all()


def _deletion_counts(session: Session, batch_ids: Iterable[uuid.UUID]) -> dict[str, int]:
    """Count from the audit entries of claims: a deletion's row only knows the last batch that claimed it."""
    rows = session.execute(
        select(AuditEntry.concerns, func.json_array_length(AuditEntry.details["deletions"])).where(
            AuditEntry.concerns.in_([str(batch_id) for batch_id in batch_ids]), AuditEntry.action == "batch.claimed"
        )
    )
    return dict(rows.all())
