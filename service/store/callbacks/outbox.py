"""Outbox of callbacks: rows written in the transaction that changed their deletion, and sent afterwards.

A sender claims a row with a lease, posts it without an open transaction and records the result. If it dies in between,
the lease expires and the row is sent again under the same id: at least once, in order for each deletion and URL.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.callbacks.claiming import ClaimedCallback
from service.store.clock import current_time
from service.store.deletions.opendsr import REQUEST_STATUS
from service.store.deletions.views import DeletionRow
from service.store.dialect import CLOCK
from service.store.errors import NotFound, NotResendable
from service.store.paging import Page, Position, Window, make_page, newest_first
from service.store.states import CallbackStatus, DeletionStatus
from service.store.tables import Callback, Certificate, Deletion, OpenDsrRequest

SENDER = "lethe"


@dataclass(frozen=True)
class Change:
    """Change of a deletion's status."""

    deletion: Deletion | DeletionRow
    before: str
    absent: bool
    """Whether no model held the subject, so that the only certificate is one of absence."""


def host_of(url: str) -> str:
    """Return the host, the only part of a URL that is shown: its path and query can contain secrets."""
    return urlsplit(url).hostname or ""


def enqueue(session: Session, changes: Iterable[Change]) -> None:
    """Write a row for each callback URL of the deletions. They are locked, so their sequences have no gaps."""
    by_deletion = {change.deletion.id: change for change in changes if change.deletion.callback_urls}
    if not by_deletion:
        return
    certificates = _certificate_ids(session, by_deletion)
    last = select(Callback.deletion_id, func.max(Callback.sequence)).where(Callback.deletion_id.in_(by_deletion))
    sequences = dict(session.execute(last.group_by(Callback.deletion_id)).all())
    from_opendsr = select(OpenDsrRequest.deletion_id).where(OpenDsrRequest.deletion_id.in_(by_deletion))
    opendsr_ids = set(session.scalars(from_opendsr))
    timestamp = current_time(session)
    rows: list[dict[str, Any]] = []
    for deletion_id, change in by_deletion.items():
        if deletion_id not in opendsr_ids or _changes_opendsr_status(change):
            shared = {
                "deletion_id": deletion_id,
                "caller": change.deletion.caller,
                "message": _message(change, certificates.get(deletion_id, []), timestamp),
            }
            urls = enumerate(change.deletion.callback_urls or [], sequences.get(deletion_id, 0) + 1)
            rows += [{**shared, "sequence": sequence, "url": url, "host": host_of(url)} for sequence, url in urls]
    if rows:
        session.execute(insert(Callback), rows)


def mark_delivered(session: Session, claimed: ClaimedCallback) -> bool:
    """Record the delivery. False if the lease was lost: then its new holder records the result."""
    if not _end(session, claimed, status=CallbackStatus.DELIVERED, delivered_at=CLOCK, failure=None):
        return False
    _record(session, claimed, "callback.delivered")
    return True


def mark_failed(session: Session, claimed: ClaimedCallback, reason: str, delay: timedelta | None) -> bool:
    """Postpone the callback by `delay`, or mark it as dead. False if the lease was lost."""
    if delay is not None:
        return _end(session, claimed, not_before=current_time(session) + delay, failure=reason)
    if not _end(session, claimed, status=CallbackStatus.DEAD, failure=reason):
        return False
    _record(session, claimed, "callback.dead", reason=reason)
    return True


def find_callback_page(session: Session, statuses: Sequence[str], window: Window) -> Page[Callback]:
    query = select(Callback)
    if statuses:
        query = query.where(Callback.status.in_(statuses))
    rows = session.scalars(newest_first(query, Callback.created_at, Callback.id, window)).all()
    return make_page(rows, window, lambda row: Position(row.created_at, row.id))


def resend(session: Session, callback_id: uuid.UUID, actor: str) -> Callback:
    """Give a dead callback a new set of attempts, starting now."""
    row = session.get(Callback, callback_id, with_for_update=True)
    if row is None:
        raise NotFound(f"callback {callback_id} not found; GET /api/v1/callbacks lists all callbacks")
    if row.status != CallbackStatus.DEAD:
        raise NotResendable(f"the callback is {row.status}; only a dead one can be sent again")
    row.status, row.attempts, row.not_before = CallbackStatus.PENDING, 0, current_time(session)
    audit.record(session, actor, "callback.resent", row.deletion_id, callback=str(row.id), host=host_of(row.url))
    return row


def _certificate_ids(session: Session, deletion_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[uuid.UUID]]:
    is_current = Certificate.replaced_by.is_(None)
    query = select(Certificate.deletion_id, Certificate.id).where(Certificate.deletion_id.in_(deletion_ids), is_current)
    certificate_ids: dict[uuid.UUID, list[uuid.UUID]] = {}
    for deletion_id, certificate_id in session.execute(query):
        certificate_ids.setdefault(deletion_id, []).append(certificate_id)
    return certificate_ids


def _changes_opendsr_status(change: Change) -> bool:
    """Whether the OpenDSR status changes too: OpenDSR has fewer statuses than Lethe."""
    return REQUEST_STATUS[DeletionStatus(change.before)] != REQUEST_STATUS[DeletionStatus(change.deletion.status)]


def _message(change: Change, certificate_ids: Sequence[uuid.UUID], occurred_at: datetime) -> dict[str, Any]:
    """Return the callback's content at the time of the change. Later attempts repeat it unchanged."""
    deletion = change.deletion
    return {
        "status": deletion.status,
        "occurred_at": _format(occurred_at),
        "due_at": _format(deletion.due_at),
        "certificates": [f"/api/v1/certificates/{certificate_id}" for certificate_id in sorted(certificate_ids)],
        "absence": f"/api/v1/deletions/{deletion.id}/absence" if change.absent else None,
    }


def _format(timestamp: datetime) -> str:
    return timestamp.isoformat().replace("+00:00", "Z")


def _end(session: Session, claimed: ClaimedCallback, **values: Any) -> bool:
    """Store the result of an attempt. This is the fence: False unless the sender still holds the lease."""
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


def _record(session: Session, claimed: ClaimedCallback, action: str, **details: str) -> None:
    callback = {"callback": str(claimed.id), "host": claimed.host, "told": claimed.message["status"]}
    audit.record(session, SENDER, action, claimed.deletion_id, **callback, attempts=claimed.attempts, **details)
