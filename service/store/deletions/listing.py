"""Lists of deletions: newest first, one page at a time, by filters that indexes support."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, not_, select, true, union_all
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.store.database import Database
from service.store.deletions.lifecycle import OPEN_STATUSES
from service.store.deletions.views import DeletionView, views_shown_to
from service.store.dialect import CLOCK, plan_for_values
from service.store.paging import EPOCH, Page, Position, Window, make_page, newest_first
from service.store.tables import Deletion, DeletionTarget, now

EXPORT_PAGE_SIZE = 500
MIN_PERIOD, MAX_PERIOD = timedelta(days=28), timedelta(days=92)
"""From receipt to deadline: the shortest month to the longest three months; 45 and 90 days lie between."""


@dataclass(frozen=True)
class Criteria:
    """Filters of deletions. None omits a filter; a range includes its start and excludes its end."""

    caller: str | None = None
    statuses: Sequence[str] = ()
    regulation: str | None = None
    model_id: uuid.UUID | None = None
    received_from: datetime | None = None
    received_to: datetime | None = None
    due_from: datetime | None = None
    due_to: datetime | None = None
    overdue: bool | None = None


def find_page(session: Session, criteria: Criteria, window: Window) -> Page[DeletionView]:
    plan_for_values(session)
    deletions = session.scalars(page_query(criteria, window)).all()
    page = make_page(deletions, window, lambda deletion: Position(deletion.received_at, deletion.id))
    return Page(views_shown_to(session, page.items, criteria.caller), page.end)


def export(database: Database, criteria: Criteria) -> Iterator[Sequence[DeletionView]]:
    """Yield all matches, page by page, each in its own transaction: a slow client holds neither memory nor locks."""
    window: Window | None = Window(EXPORT_PAGE_SIZE)
    while window is not None:
        with database.reading() as session:
            page = find_page(session, criteria, window)
        yield page.items
        window = Window(EXPORT_PAGE_SIZE, page.end) if page.end else None


def page_query(criteria: Criteria, window: Window) -> Select[Deletion]:
    """Return a query that always walks an index in list order, so that it stops after the first matches."""
    if criteria.model_id is not None:
        return _model_query(criteria, criteria.model_id, window)
    statuses = list(dict.fromkeys(criteria.statuses or (OPEN_STATUSES if criteria.overdue else ())))
    if len(statuses) > 1:
        return _statuses_query(criteria, statuses, window)
    query = select(Deletion).where(matches(criteria, window.after))
    return newest_first(query, Deletion.received_at, Deletion.id, window)


def _model_query(criteria: Criteria, model_id: uuid.UUID, window: Window) -> Select[Deletion]:
    """Walk the model's own targets: the deletions of a retired model are all old."""
    target = DeletionTarget
    of_model = select(Deletion).join(target, target.deletion_id == Deletion.id).where(target.model_id == model_id)
    query = of_model.where(*_received_between(target.received_at, criteria, window.after))
    query = query.where(matches(replace(criteria, model_id=None), window.after))
    if criteria.caller is not None:  # otherwise the list would show whether the model holds the subject
        query = query.where(Deletion.binding_at <= CLOCK)
    return newest_first(query, target.received_at, target.deletion_id, window)


def _statuses_query(criteria: Criteria, statuses: Sequence[str], window: Window) -> Select[Deletion]:
    """Merge one page per status: an index is in list order for a single status only."""
    pages = []
    for status in statuses:
        with_status = select(Deletion).where(matches(replace(criteria, statuses=[status]), window.after))
        pages.append(select(newest_first(with_status, Deletion.received_at, Deletion.id, window).subquery()))
    merged = aliased(Deletion, union_all(*pages).subquery())
    return newest_first(select(merged), merged.received_at, merged.id, Window(window.limit))


def matches(criteria: Criteria, after: Position | None = None) -> ColumnElement[bool]:
    """Return the filters as one condition. Each compares a bare column with values, as indexes require."""
    equal = ((Deletion.caller, criteria.caller), (Deletion.regulation, criteria.regulation))
    conditions: list[ColumnElement[bool]] = [column == value for column, value in equal if value is not None]
    conditions += _received_between(Deletion.received_at, criteria, after)
    conditions += _within(Deletion.due_at, criteria.due_from, criteria.due_to)
    if criteria.statuses:
        conditions.append(Deletion.status.in_(criteria.statuses))
    if criteria.model_id is not None:
        of_model = select(DeletionTarget.deletion_id).where(DeletionTarget.model_id == criteria.model_id)
        conditions.append(Deletion.id.in_(of_model))
    if criteria.overdue is not None:
        overdue = and_(Deletion.due_at < now(), Deletion.status.in_(OPEN_STATUSES))
        conditions.append(overdue if criteria.overdue else not_(overdue))
    return and_(true(), *conditions)


def _received_between(
    column: InstrumentedAttribute[datetime], criteria: Criteria, after: Position | None
) -> Iterator[ColumnElement[bool]]:
    """Limit the time of receipt, also as implied by filters on the deadline: this bounds the walk along the index.

    An end after the previous page's last row is left out: PostgreSQL would start there and skip all rows in between.
    """
    due_to = min((time for time in (criteria.due_to, now() if criteria.overdue else None) if time), default=None)
    starts = [time for time in (criteria.received_from, _earlier(criteria.due_from, MAX_PERIOD)) if time]
    ends = [time for time in (criteria.received_to, _earlier(due_to, MIN_PERIOD)) if time]
    if after is not None:
        ends = [time for time in ends if time <= after.timestamp]
    return _within(column, max(starts, default=None), min(ends, default=None))


def _within(
    column: InstrumentedAttribute[datetime], start: datetime | None, end: datetime | None
) -> Iterator[ColumnElement[bool]]:
    if start is not None:
        yield column >= start
    if end is not None:
        yield column < end


def _earlier(time: datetime | None, period: timedelta) -> datetime | None:
    """Return the time that much earlier. None if the calendar has none: then no limit is implied."""
    return time - period if time is not None and time - EPOCH > period else None
