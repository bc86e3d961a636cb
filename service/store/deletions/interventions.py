"""What people may change of a deletion: cancel it, try it again, extend its deadline.

Targets are locked before they are looked at, so that a worker's claim and a person's change exclude each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.deletions import deadlines
from service.store.deletions.lifecycle import OPEN, DeletionView, find_row, refresh, view
from service.store.deletions.listing import Criteria, matches
from service.store.errors import InvalidExtension, NotCancellable, NothingToRetry
from service.store.states import DeletionStatus
from service.store.tables import Deletion, DeletionTarget, now

MOST_RETRIED = 10_000
LOCK_CHUNK = 5_000
"""SQLite allows 32,766 bound values in one statement."""


@dataclass(frozen=True)
class Retried:
    """What went back to pending: how many deletions, and the models whose doorbell is to be rung."""

    deletions: int
    model_ids: frozenset[uuid.UUID]


def cancel(session: Session, deletion_id: uuid.UUID, caller: str | None, actor: str) -> DeletionView:
    """Take a pending deletion back: what no worker has done yet, nobody will do."""
    deletion = find_row(session, deletion_id, caller)
    targets = _locked(session, DeletionTarget.deletion_id == deletion_id)
    statuses = {target.status for target in targets}
    if DeletionStatus.RUNNING in statuses or DeletionStatus.PENDING not in statuses:
        session.refresh(deletion)
        raise NotCancellable(
            f"the deletion is {deletion.status}; only a pending one can be cancelled, before a worker begins with it"
        )
    for target in targets:
        if target.status != DeletionStatus.COMPLETED:
            target.status = DeletionStatus.CANCELLED
    audit.record(session, actor, "deletion.cancelled", deletion_id)
    refresh(session, [deletion_id])
    return view(session, deletion)


def retry(
    session: Session, deletion_id: uuid.UUID, caller: str | None, actor: str
) -> tuple[DeletionView, frozenset[uuid.UUID]]:
    """Give what failed another set of attempts. Returns also the models whose doorbell is to be rung."""
    deletion = find_row(session, deletion_id, caller)
    retried = _retry(session, [deletion_id], actor)
    if not retried.deletions:
        raise NothingToRetry(f"no model of this deletion has failed; it is {deletion.status}")
    return view(session, deletion), retried.model_ids


def retry_matching(session: Session, criteria: Criteria, actor: str) -> Retried:
    """Retry the failed deletions among the matches, the oldest first, at most MOST_RETRIED."""
    ids = session.scalars(
        select(Deletion.id)
        .where(Deletion.status == DeletionStatus.FAILED, matches(criteria))
        .order_by(Deletion.received_at, Deletion.id)
        .limit(MOST_RETRIED)
    ).all()
    return _retry(session, ids, actor)


def extend(session: Session, deletion_id: uuid.UUID, until: datetime, reason: str, actor: str) -> DeletionView:
    """Move the deadline, as far as the regulation of the request allows."""
    deletion = find_row(session, deletion_id, caller=None)
    session.refresh(deletion, with_for_update=True)
    latest = deadlines.latest(deletion.regulation, deletion.received_at)
    if deletion.status not in OPEN:
        raise InvalidExtension(f"the deletion is {deletion.status}; its deadline no longer counts")
    if not deletion.due_at <= until <= latest:
        raise InvalidExtension(
            f"choose a time from {deletion.due_at.isoformat()}, when it is due now, to {latest.isoformat()}, "
            f"the latest that {deletion.regulation} allows"
        )
    times = {"due_before": deletion.due_at.isoformat(), "due_now": until.isoformat()}
    deletion.due_at, deletion.extension_reason = until, reason
    audit.record(session, actor, "deletion.extended", deletion_id, reason=reason, **times)
    return view(session, deletion)


def _retry(session: Session, deletion_ids: Sequence[uuid.UUID], actor: str) -> Retried:
    targets: list[DeletionTarget] = []
    ordered = sorted(deletion_ids)
    for start in range(0, len(ordered), LOCK_CHUNK):
        chosen = DeletionTarget.deletion_id.in_(ordered[start : start + LOCK_CHUNK])
        targets += _locked(session, chosen, DeletionTarget.status == DeletionStatus.FAILED)
    by_deletion = {key: list(group) for key, group in groupby(targets, lambda target: target.deletion_id)}
    for deletion_id, failed in by_deletion.items():
        failures = {str(target.model_id): target.failure for target in failed}
        audit.record(session, actor, "deletion.retried", deletion_id, failures=failures)
    moment = now()
    for target in targets:
        target.status, target.attempts, target.not_before = DeletionStatus.PENDING, 0, moment
        target.failure, target.batch_limit = None, None  # from here on it is in the history
    refresh(session, by_deletion)
    return Retried(len(by_deletion), frozenset(target.model_id for target in targets))


def _locked(session: Session, *conditions: ColumnElement[bool]) -> Sequence[DeletionTarget]:
    return session.scalars(
        select(DeletionTarget)
        .where(*conditions)
        .order_by(DeletionTarget.deletion_id, DeletionTarget.model_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
