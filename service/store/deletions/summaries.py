"""Summaries of open, overdue and finished deletions: now, and once a day as an audit entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import ColumnElement, and_, case, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store import audit
from service.store.clock import current_time
from service.store.database import Database
from service.store.deletions.lifecycle import OPEN_STATUSES
from service.store.states import DeletionStatus
from service.store.tables import AuditEntry, Deletion

SOON = timedelta(days=7)
ACTION = "summary.daily"
REGULATIONS = ("gdpr", "ccpa")
# Written as in the partial index, so that the planner uses it.
IS_SUMMARY = text("action = 'summary.daily'")


@dataclass(frozen=True)
class Counts:
    """Counts of one regulation. The first two are events of the period, the others the state at its end."""

    received: int = 0
    completed: int = 0
    failed: int = 0
    overdue: int = 0
    due_soon: int = 0


@dataclass(frozen=True)
class Summary:
    """Summary from `since` to the end of `day` in UTC. A day on which no sweep ran is part of the next summary."""

    day: date
    since: datetime
    written_at: datetime
    regulations: Mapping[str, Counts]


@dataclass(frozen=True)
class DeadlineCounts:
    overdue: int
    due_soon: int


def count_deadlines(session: Session) -> DeadlineCounts:
    """Count the open deletions that are overdue or due within a week."""
    is_late, is_soon = _deadline_conditions(current_time(session))
    query = select(_count_if(is_late), _count_if(is_soon)).where(Deletion.status.in_(OPEN_STATUSES))
    return DeadlineCounts(*session.execute(query).one())


def write_daily_summary(database: Database) -> Summary | None:
    """Write yesterday's summary unless it exists. Of two sweeps the database lets only one do it."""
    with database.reading() as session:
        day = current_time(session).date() - timedelta(days=1)
        latest = find_summaries(session, 1)
    if latest and latest[0].day >= day:
        return None
    since = _midnight(latest[0].day + timedelta(days=1) if latest else day)
    try:
        with database.writing() as session:
            written_at = current_time(session)
            counts = _count(session, since, _midnight(day + timedelta(days=1)))
            regulations = {name: asdict(numbers) for name, numbers in counts.items()}
            audit.record(session, "lethe", ACTION, day.isoformat(), since=since.isoformat(), regulations=regulations)
    except IntegrityError:
        return None
    return Summary(day, since, written_at, counts)


def find_summaries(session: Session, limit: int, before: date | None = None) -> Sequence[Summary]:
    """Return summaries, newest first; with `before`, only those of earlier days."""
    query = select(AuditEntry).where(IS_SUMMARY).order_by(AuditEntry.concerns.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEntry.concerns < before.isoformat())
    return [_summary(entry) for entry in session.scalars(query)]


def _summary(entry: AuditEntry) -> Summary:
    counts = {name: Counts(**numbers) for name, numbers in entry.details["regulations"].items()}
    since = datetime.fromisoformat(entry.details["since"])
    return Summary(date.fromisoformat(entry.concerns), since, entry.at, counts)


def _count(session: Session, start: datetime, end: datetime) -> dict[str, Counts]:
    """Count in one pass over the table."""
    is_late, is_soon = _deadline_conditions(current_time(session))
    is_open = Deletion.status.in_(OPEN_STATUSES)
    conditions = (
        and_(Deletion.received_at >= start, Deletion.received_at < end),
        and_(Deletion.completed_at >= start, Deletion.completed_at < end),
        Deletion.status == DeletionStatus.FAILED,
        and_(is_open, is_late),
        and_(is_open, is_soon),
    )
    query = select(Deletion.regulation, *map(_count_if, conditions)).group_by(Deletion.regulation)
    counts = {regulation: Counts(*numbers) for regulation, *numbers in session.execute(query)}
    return {regulation: counts.get(regulation, Counts()) for regulation in REGULATIONS}


def _deadline_conditions(reference: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions for being overdue and for being due soon."""
    return Deletion.due_at < reference, and_(Deletion.due_at >= reference, Deletion.due_at < reference + SOON)


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count(case((condition, 1)))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
