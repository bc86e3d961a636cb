"""Deletions as a list: newest first, by filters that indexes serve, a page at a time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, not_, select, text, true, union_all
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.store.database import Database
from service.store.deletions.lifecycle import OPEN, DeletionView, views
from service.store.paging import EPOCH, Page, Position, Window, cut, newest_first
from service.store.tables import Deletion, DeletionTarget, now

EXPORT_PAGE = 500
SOONEST, LATEST = timedelta(days=28), timedelta(days=92)
"""Between receipt and deadline: the shortest month to the longest three months; 45 and 90 days lie between."""


@dataclass(frozen=True)
class Criteria:
    """Which deletions. None leaves a filter out; a range includes its beginning and not its end."""

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
    found = session.scalars(page_query(criteria, window)).all()
    page = cut(found, window, lambda deletion: Position(deletion.received_at, deletion.id))
    return Page(views(session, page.items), page.end)


def plan_for_values(session: Session) -> None:
    """Until the transaction ends. The driver prepares what it sends often, and PostgreSQL may then keep one plan for
    all values: the one that suits deletions due this week takes most of a second for those of a year.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))


def export(database: Database, criteria: Criteria) -> Iterator[Sequence[DeletionView]]:
    """All matches, page by page, each in its own short look: a slow reader holds neither memory nor a transaction."""
    window: Window | None = Window(EXPORT_PAGE)
    while window is not None:
        with database.reading() as session:
            page = find_page(session, criteria, window)
        yield page.items
        window = Window(EXPORT_PAGE, page.end) if page.end else None


def page_query(criteria: Criteria, window: Window) -> Select[Deletion]:
    """Always a walk along an index in the order of the list, so that the first matches are found wherever they are."""
    if criteria.model_id is not None:
        return _of_model(criteria, criteria.model_id, window)
    statuses = list(dict.fromkeys(criteria.statuses or (OPEN if criteria.overdue else ())))
    if len(statuses) > 1:
        return _of_any(criteria, statuses, window)
    query = select(Deletion).where(matches(criteria, window.after))
    return newest_first(query, Deletion.received_at, Deletion.id, window)


def _of_model(criteria: Criteria, model_id: uuid.UUID, window: Window) -> Select[Deletion]:
    """Along the model's own targets: the deletions of a retired model are all old."""
    target = DeletionTarget
    of_it = select(Deletion).join(target, target.deletion_id == Deletion.id).where(target.model_id == model_id)
    query = of_it.where(*_received(target.received_at, criteria, window.after))
    query = query.where(matches(replace(criteria, model_id=None), window.after))
    return newest_first(query, target.received_at, target.deletion_id, window)


def _of_any(criteria: Criteria, statuses: Sequence[str], window: Window) -> Select[Deletion]:
    """A page of each status, and a page of those: an index is in the order of the list for one status only."""
    pages = []
    for status in statuses:
        of_one = select(Deletion).where(matches(replace(criteria, statuses=[status]), window.after))
        pages.append(select(newest_first(of_one, Deletion.received_at, Deletion.id, window).subquery()))
    found = aliased(Deletion, union_all(*pages).subquery())
    return newest_first(select(found), found.received_at, found.id, Window(window.limit))


def matches(criteria: Criteria, after: Position | None = None) -> ColumnElement[bool]:
    """The filters as one condition. Each compares a bare column with values, as an index needs it."""
    equal = ((Deletion.caller, criteria.caller), (Deletion.regulation, criteria.regulation))
    given: list[ColumnElement[bool]] = [column == value for column, value in equal if value is not None]
    given += _received(Deletion.received_at, criteria, after)
    given += _within(Deletion.due_at, criteria.due_from, criteria.due_to)
    if criteria.statuses:
        given.append(Deletion.status.in_(criteria.statuses))
    if criteria.model_id is not None:
        concerned = select(DeletionTarget.deletion_id).where(DeletionTarget.model_id == criteria.model_id)
        given.append(Deletion.id.in_(concerned))
    if criteria.overdue is not None:
        overdue = and_(Deletion.due_at < now(), Deletion.status.in_(OPEN))
        given.append(overdue if criteria.overdue else not_(overdue))
    return and_(true(), *given)


def _received(
    column: InstrumentedAttribute[datetime], criteria: Criteria, after: Position | None
) -> Iterator[ColumnElement[bool]]:
    """When matches can have been received, also as far as their deadline tells: where a walk begins and ends.

    No end where the page before ended earlier: PostgreSQL would begin at the one and pass over all down to the other.
    """
    due_to = min((moment for moment in (criteria.due_to, now() if criteria.overdue else None) if moment), default=None)
    starts = [moment for moment in (criteria.received_from, _shifted(criteria.due_from, LATEST)) if moment]
    ends = [moment for moment in (criteria.received_to, _shifted(due_to, SOONEST)) if moment]
    if after is not None:
        ends = [moment for moment in ends if moment <= after.moment]
    return _within(column, max(starts, default=None), min(ends, default=None))


def _within(
    column: InstrumentedAttribute[datetime], start: datetime | None, end: datetime | None
) -> Iterator[ColumnElement[bool]]:
    if start is not None:
        yield column >= start
    if end is not None:
        yield column < end


def _shifted(moment: datetime | None, earlier: timedelta) -> datetime | None:
    """None also where the calendar has no such time: then nothing is implied."""
    return moment - earlier if moment is not None and moment - EPOCH > earlier else None
