"""The outbox: which callbacks are to be sent, written in the transaction that changed the deletion they tell of.

A sender claims a row by a lease, posts it with no transaction open and says how it went. Whoever dies in between lets
the lease run out and the row is sent again, under the same id: at least once, in order for each deletion and URL.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import ColumnElement, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session, aliased

from service.store import audit
from service.store.deletions.opendsr_status import REQUEST_STATUS
from service.store.deletions.received import Received
from service.store.errors import NotFound, NotResendable
from service.store.paging import Page, Position, Window, cut, newest_first
from service.store.states import CallbackStatus, DeletionStatus
from service.store.tables import Callback, Certificate, Deletion, OpenDsrRequest, now

SENDER = "lethe"


@dataclass(frozen=True)
class Change:
    """A deletion that has just entered another state."""

    deletion: Deletion | Received
    before: str
    absent: bool
    """No model held the subject: there is a certificate of absence and no other."""


@dataclass(frozen=True)
class Claimed:
    """What a sender takes along. The end of its lease is its fencing token: every later claim ends later."""

    id: uuid.UUID
    sequence: int
    deletion_id: uuid.UUID
    url: str
    message: dict[str, Any]
    attempts: int
    lease: datetime
    caller: str
    subject_request_id: uuid.UUID | None
    """Given by the sender of an OpenDSR request; None for the native API."""

    @property
    def host(self) -> str:
        return host_of(self.url)


def host_of(url: str) -> str:
    """All that is shown of a URL: paths and queries of callbacks hold secrets."""
    return urlsplit(url).hostname or ""


def enqueue(session: Session, changes: Iterable[Change]) -> None:
    """Write a row for each URL that wants to know. The deletions are locked, so their sequences have no gaps."""
    wanted = {change.deletion.id: change for change in changes if change.deletion.callback_urls}
    if not wanted:
        return
    of_these = Certificate.deletion_id.in_(wanted)
    certificates: dict[uuid.UUID, list[uuid.UUID]] = {}
    for deletion_id, certificate_id in session.execute(select(Certificate.deletion_id, Certificate.id).where(of_these)):
        certificates.setdefault(deletion_id, []).append(certificate_id)
    last = select(Callback.deletion_id, func.max(Callback.sequence)).where(Callback.deletion_id.in_(wanted))
    sequences = dict(session.execute(last.group_by(Callback.deletion_id)).all())
    opendsr = set(session.scalars(select(OpenDsrRequest.deletion_id).where(OpenDsrRequest.deletion_id.in_(wanted))))
    rows: list[dict[str, Any]] = []
    for deletion_id, change in wanted.items():
        if deletion_id not in opendsr or _is_news(change):
            common = {"deletion_id": deletion_id, "message": _message(change, certificates.get(deletion_id, []))}
            urls = enumerate(change.deletion.callback_urls or [], sequences.get(deletion_id, 0) + 1)
            rows += [{**common, "sequence": sequence, "url": url} for sequence, url in urls]
    if rows:
        session.execute(insert(Callback), rows)


def claim(session: Session, limit: int, lease_seconds: float) -> Sequence[Claimed]:
    """Take rows that are due and that nobody holds; of each deletion and URL only the first that is still to be sent.

    Rows that another sender is just claiming are passed over on PostgreSQL; on SQLite writers come one by one.
    """
    moment = now()
    rows = session.scalars(
        select(Callback)
        .where(_is_due(moment), ~_has_unsent_before())
        .order_by(Callback.not_before, Callback.id)
        .limit(limit)
        .with_for_update(skip_locked=True, of=Callback)
        .execution_options(populate_existing=True)
    ).all()
    for row in rows:
        row.attempts += 1
        row.lease_expires_at = moment + timedelta(seconds=lease_seconds)
    session.flush()
    about = {
        found.id: (found.caller, found.subject_request_id)
        for found in session.execute(
            select(Deletion.id, Deletion.caller, OpenDsrRequest.subject_request_id)
            .outerjoin(OpenDsrRequest, OpenDsrRequest.deletion_id == Deletion.id)
            .where(Deletion.id.in_({row.deletion_id for row in rows}))
        )
    }
    return [_claimed(row, *about[row.deletion_id]) for row in rows]


def delivered(session: Session, claimed: Claimed) -> bool:
    """Note that the receiver has it. False if the lease was lost: then whoever holds it now says so."""
    if not _end(session, claimed, status=CallbackStatus.DELIVERED, delivered_at=now(), failure=None):
        return False
    _record(session, claimed, "callback.delivered")
    return True


def failed(session: Session, claimed: Claimed, reason: str, retry_at: datetime | None) -> bool:
    """Put it off, or without `retry_at` give it up. False if the lease was lost."""
    if retry_at is not None:
        return _end(session, claimed, not_before=retry_at, failure=reason)
    if not _end(session, claimed, status=CallbackStatus.DEAD, failure=reason):
        return False
    _record(session, claimed, "callback.dead", reason=reason)
    return True


def page(session: Session, statuses: Sequence[str], window: Window) -> Page[Callback]:
    query = select(Callback)
    if statuses:
        query = query.where(Callback.status.in_(statuses))
    rows = session.scalars(newest_first(query, Callback.created_at, Callback.id, window)).all()
    return cut(rows, window, lambda row: Position(row.created_at, row.id))


def resend(session: Session, callback_id: uuid.UUID, actor: str) -> Callback:
    """Give a dead callback another set of attempts, from now on."""
    row = session.get(Callback, callback_id, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no callback {callback_id}; GET /api/v1/callbacks lists them")
    if row.status != CallbackStatus.DEAD:
        raise NotResendable(f"the callback is {row.status}; only one that was given up can be sent again")
    row.status, row.attempts, row.not_before = CallbackStatus.PENDING, 0, now()
    audit.record(session, actor, "callback.resent", row.deletion_id, callback=str(row.id), host=host_of(row.url))
    return row


def _is_news(change: Change) -> bool:
    """OpenDSR has fewer words than we have states."""
    return REQUEST_STATUS[DeletionStatus(change.before)] != REQUEST_STATUS[DeletionStatus(change.deletion.status)]


def _message(change: Change, certificate_ids: Sequence[uuid.UUID]) -> dict[str, Any]:
    """What is told, as it is now: a later attempt repeats it word for word."""
    deletion = change.deletion
    return {
        "status": deletion.status,
        "occurred_at": _timestamp(now()),
        "due_at": _timestamp(deletion.due_at),
        "certificates": [f"/api/v1/certificates/{found}" for found in sorted(certificate_ids)],
        "absence": f"/api/v1/deletions/{deletion.id}/absence" if change.absent else None,
    }


def _timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _is_due(moment: datetime) -> ColumnElement[bool]:
    free = or_(Callback.lease_expires_at.is_(None), Callback.lease_expires_at <= moment)
    return (Callback.status == CallbackStatus.PENDING) & (Callback.not_before <= moment) & free


def _has_unsent_before() -> ColumnElement[bool]:
    earlier = aliased(Callback)
    return exists().where(
        earlier.deletion_id == Callback.deletion_id,
        earlier.url == Callback.url,
        earlier.sequence < Callback.sequence,
        earlier.status == CallbackStatus.PENDING,
    )


def _claimed(row: Callback, caller: str, subject_request_id: uuid.UUID | None) -> Claimed:
    if row.lease_expires_at is None:
        raise ValueError("a claimed row has a lease")
    return Claimed(
        id=row.id,
        sequence=row.sequence,
        deletion_id=row.deletion_id,
        url=row.url,
        message=row.message,
        attempts=row.attempts,
        lease=row.lease_expires_at,
        caller=caller,
        subject_request_id=subject_request_id,
    )


def _end(session: Session, claimed: Claimed, **values: Any) -> bool:
    """The fence: only who still holds the lease may say how it went."""
    ended = session.execute(
        update(Callback)
        .where(
            Callback.id == claimed.id,
            Callback.status == CallbackStatus.PENDING,
            Callback.lease_expires_at == claimed.lease,
        )
        .values(lease_expires_at=None, **values)
        .returning(Callback.id)
    )
    return ended.first() is not None


def _record(session: Session, claimed: Claimed, action: str, **details: str) -> None:
    facts = {"callback": str(claimed.id), "host": claimed.host, "told": claimed.message["status"]}
    audit.record(session, SENDER, action, claimed.deletion_id, **facts, attempts=claimed.attempts, **details)
