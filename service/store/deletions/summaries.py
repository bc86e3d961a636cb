"""What is due and what is late: as it stands now, and once a day as an entry of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import ColumnElement, and_, case, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store import audit
from service.store.database import Database
from service.store.deletions.lifecycle import OPEN
from service.store.states import DeletionStatus
from service.store.tables import AuditEntry, Deletion, now

SOON = timedelta(days=7)
ACTION = "summary.daily"
REGULATIONS = ("gdpr", "ccpa")
# Spelt out as in the partial index, so that the planner sees that it fits.
IS_SUMMARY = text("action = 'summary.daily'")


@dataclass(frozen=True)
class Counts:
    """Of one regulation. The first two happened in the time that the summary covers; the others are its state."""

    received: int = 0
    completed: int = 0
    failed: int = 0
    overdue: int = 0
    due_soon: int = 0


@dataclass(frozen=True)
class Summary:
    """Of the time from `since` to the end of `day` in UTC; a day on which no sweep ran is in the next one."""

    day: date
    since: datetime
    written_at: datetime
    regulations: Mapping[str, Counts]


@dataclass(frozen=True)
class Standing:
    overdue: int
    due_soon: int


def standing(session: Session) -> Standing:
    """How many are late, and how many will be within a week if nothing happens. Looks at those that are open only."""
    late, soon = _deadline_conditions(now())
    row = session.execute(select(_how_many(late), _how_many(soon)).where(Deletion.status.in_(OPEN))).one()
    return Standing(*row)


def write_due(database: Database) -> Summary | None:
    """Write yesterday's summary unless somebody has. The database lets only one of two sweeps do it."""
    day = now().date() - timedelta(days=1)
    with database.reading() as session:
        latest = page(session, 1)
    if latest and latest[0].day >= day:
        return None
    since = _begin(latest[0].day + timedelta(days=1) if latest else day)
    try:
        with database.writing() as session:
            counts = _count(session, since, _begin(day + timedelta(days=1)))
            regulations = {name: asdict(one) for name, one in counts.items()}
            audit.record(session, "lethe", ACTION, day.isoformat(), since=since.isoformat(), regulations=regulations)
    except IntegrityError:
        return None
    return Summary(day, since, now(), counts)


def page(session: Session, limit: int, before: date | None = None) -> Sequence[Summary]:
    """The newest first; with `before`, those of earlier days."""
    query = select(AuditEntry).where(IS_SUMMARY).order_by(AuditEntry.concerns.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEntry.concerns < before.isoformat())
    return [_summary(entry) for entry in session.scalars(query)]


def _summary(entry: AuditEntry) -> Summary:
    counts = {name: Counts(**numbers) for name, numbers in entry.details["regulations"].items()}
    since = datetime.fromisoformat(entry.details["since"])
    return Summary(date.fromisoformat(entry.concerns), since, entry.at, counts)


def _count(session: Session, start: datetime, end: datetime) -> dict[str, Counts]:
    """One pass over the table, once a day."""
    late, soon = _deadline_conditions(now())
    still_open = Deletion.status.in_(OPEN)
    conditions = (
        and_(Deletion.received_at >= start, Deletion.received_at < end),
        and_(Deletion.completed_at >= start, Deletion.completed_at < end),
        Deletion.status == DeletionStatus.FAILED,
        and_(still_open, late),
        and_(still_open, soon),
    )
    query = select(Deletion.regulation, *map(_how_many, conditions)).group_by(Deletion.regulation)
    found = {regulation: Counts(*numbers) for regulation, *numbers in session.execute(query)}
    return {regulation: found.get(regulation, Counts()) for regulation in REGULATIONS}


def _deadline_conditions(moment: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Deletion.due_at < moment, and_(Deletion.due_at >= moment, Deletion.due_at < moment + SOON)


def _how_many(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count(case((condition, 1)))


def _begin(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
