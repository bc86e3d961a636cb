"""Claims of due callbacks: in turn by caller, within the slots of a sender."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from service.store.callbacks.slots import Slots
from service.store.clock import current_time
from service.store.states import CallbackStatus
from service.store.tables import Callback, OpenDsrRequest


@dataclass(frozen=True)
class ClaimedCallback:
    """Callback held by a sender. The end of its lease is the fencing token: every later claim ends later."""

    id: uuid.UUID
    sequence: int
    deletion_id: uuid.UUID
    url: str
    host: str
    message: dict[str, Any]
    attempts: int
    lease: datetime
    caller: str
    subject_request_id: uuid.UUID | None
    """Id that the sender of an OpenDSR request chose; None for the native API."""


def claim_callbacks(session: Session, slots: Slots, lease_seconds: float) -> Sequence[ClaimedCallback]:
    """Claim due callbacks without a live lease, as many as `slots` allows; per deletion and URL only the first unsent.

    Rows that another sender is claiming at the same time are skipped.
    """
    planned, timestamp = slots.copy(), current_time(session)
    rows: list[Callback] = []
    for caller in slots.in_turn(list(_waiting_callers(session))):
        for row in _due_rows(session, caller, planned, timestamp):
            if planned.has_room_on(caller, row.host):
                planned.take(caller, row.host)
                rows.append(row)
    for row in rows:
        row.attempts += 1
        row.lease_expires_at = timestamp + timedelta(seconds=lease_seconds)
    session.flush()
    request_ids = _request_ids(session, rows)
    return [_claimed_callback(row, request_ids.get(row.deletion_id)) for row in rows]


def _waiting_callers(session: Session) -> Iterator[str]:
    """Yield the callers with unsent callbacks. One lookup in the index for each, however many callbacks they have."""
    query = select(func.min(Callback.caller)).where(Callback.status == CallbackStatus.PENDING)
    caller = session.scalar(query)
    while caller is not None:
        yield caller
        caller = session.scalar(query.where(Callback.caller > caller))


def _due_rows(session: Session, caller: str, slots: Slots, timestamp: datetime) -> Sequence[Callback]:
    limit = slots.free_for(caller)
    if not limit:
        return []
    return session.scalars(
        select(Callback)
        .where(
            Callback.caller == caller,
            Callback.host.not_in(slots.full_hosts(caller)),
            _is_due(timestamp),
            ~_has_unsent_before(),
        )
        .order_by(Callback.not_before, Callback.id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Callback)
        .execution_options(populate_existing=True)
    ).all()


def _is_due(now: datetime) -> ColumnElement[bool]:
    is_free = or_(Callback.lease_expires_at.is_(None), Callback.lease_expires_at <= now)
    return (Callback.status == CallbackStatus.PENDING) & (Callback.not_before <= now) & is_free


def _has_unsent_before() -> ColumnElement[bool]:
    earlier = aliased(Callback)
    return exists().where(
        earlier.deletion_id == Callback.deletion_id,
        earlier.url == Callback.url,
        earlier.sequence < Callback.sequence,
        earlier.status == CallbackStatus.PENDING,
    )


def _request_ids(session: Session, rows: Sequence[Callback]) -> dict[uuid.UUID, uuid.UUID]:
    query = select(OpenDsrRequest.deletion_id, OpenDsrRequest.subject_request_id)
    is_claimed = OpenDsrRequest.deletion_id.in_({row.deletion_id for row in rows})
    return dict(session.execute(query.where(is_claimed)).all())


def _claimed_callback(row: Callback, subject_request_id: uuid.UUID | None) -> ClaimedCallback:
    if row.lease_expires_at is None:
        raise ValueError("a claimed callback must have a lease")
    return ClaimedCallback(
        id=row.id,
        sequence=row.sequence,
        deletion_id=row.deletion_id,
        url=row.url,
        host=row.host,
        message=row.message,
        attempts=row.attempts,
        lease=row.lease_expires_at,
        caller=row.caller,
        subject_request_id=subject_request_id,
    )
