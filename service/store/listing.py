"""Deletions as a list: newest first, by filters that indexes serve, a page at a time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, not_, select, true
from sqlalchemy.orm import Session

from service.store.database import Database
from service.store.deletions import OPEN, DeletionView, views
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
    found = session.scalars(page_query(criteria, window)).all()
    page = cut(found, window, lambda deletion: Position(deletion.received_at, deletion.id))
    return Page(views(session, page.items), page.end)


def export(database: Database, criteria: Criteria) -> Iterator[Sequence[DeletionView]]:
    """All matches, page by page, each in its own short look: a slow reader holds neither memory nor a transaction."""
    window: Window | None = Window(EXPORT_PAGE)
    while window is not None:
        with database.reading() as session:
            page = find_page(session, criteria, window)
        yield page.items
        window = Window(EXPORT_PAGE, page.end) if page.end else None


def page_query(criteria: Criteria, window: Window) -> Select[Deletion]:
    return newest_first(select(Deletion).where(matches(criteria)), Deletion.received_at, Deletion.id, window)


def matches(criteria: Criteria) -> ColumnElement[bool]:
    """The filters as one condition. Each compares a bare column with values, as an index needs it."""
    equal = ((Deletion.caller, criteria.caller), (Deletion.regulation, criteria.regulation))
    ranges = (
        (Deletion.received_at, criteria.received_from, criteria.received_to),
        (Deletion.due_at, criteria.due_from, criteria.due_to),
        # Implied, and said so that a walk along the order of receipt begins and ends where matches can be.
        (Deletion.received_at, _shifted(criteria.due_from, LATEST), _shifted(criteria.due_to, SOONEST)),
    )
    given: list[ColumnElement[bool]] = [column == value for column, value in equal if value is not None]
    given += [column >= start for column, start, _ in ranges if start is not None]
    given += [column < end for column, _, end in ranges if end is not None]
    if criteria.statuses:
        given.append(Deletion.status.in_(criteria.statuses))
    if criteria.model_id is not None:
        concerned = select(DeletionTarget.deletion_id).where(DeletionTarget.model_id == criteria.model_id)
        given.append(Deletion.id.in_(concerned))
    if criteria.overdue is not None:
        late = and_(Deletion.due_at < now(), Deletion.received_at < now() - SOONEST)
        overdue = and_(late, Deletion.status.in_(OPEN))
        given.append(overdue if criteria.overdue else not_(overdue))
    return and_(true(), *given)


def _shifted(moment: datetime | None, earlier: timedelta) -> datetime | None:
    """None also where the calendar has no such time: then nothing is implied."""
    return moment - earlier if moment is not None and moment - EPOCH > earlier else None
