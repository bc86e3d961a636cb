"""Changes that people make to deletions: cancel, retry, extend the deadline.

Targets are locked before they are read, so that a worker's claim and a person's change exclude each other.
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
from service.store.clock import current_time
from service.store.deletions import deadlines
from service.store.deletions.absences import cancel_absence
from service.store.deletions.lifecycle import OPEN_STATUSES, refresh
from service.store.deletions.listing import Criteria, matches
from service.store.deletions.views import DeletionView, find_deletion, is_binding, view_of
from service.store.dialect import chunks
from service.store.errors import InvalidExtension, NotCancellable, NothingToRetry
from service.store.states import DeletionStatus
from service.store.tables import Deletion, DeletionTarget

MAX_RETRIED = 10_000
CANCELLABLE = (DeletionStatus.PENDING, DeletionStatus.FAILED)
CALLERS_CAN_CANCEL = (
    "its caller can cancel it only until its batch window ends, an operator as long as it is pending or failed"
)
OPERATORS_CAN_CANCEL = "only a pending or failed deletion can be cancelled"


@dataclass(frozen=True)
class Retried:
    """Number of deletions that are pending again, and the models whose doorbell is to be rung."""

    deletions: int
    model_ids: frozenset[uuid.UUID]


def cancel(session: Session, deletion_id: uuid.UUID, caller: str | None, actor: str) -> DeletionView:
    """Cancel a deletion in all models in which it is not completed.

    With `caller` given it must not be binding yet; with None, an operator's case, no worker may have it.
    """
    deletion = find_deletion(session, deletion_id, caller)
    targets = _lock_targets(session, DeletionTarget.deletion_id == deletion_id)
    session.refresh(deletion, with_for_update=True)
    timestamp = current_time(session)
    if caller is not None and is_binding(deletion, timestamp):
        raise NotCancellable(f"the deletion is {deletion.status} and binding; {CALLERS_CAN_CANCEL}")
    if not _cancel_targets(targets) and not cancel_absence(session, deletion_id):
        raise NotCancellable(f"the deletion is {deletion.status}; {OPERATORS_CAN_CANCEL}")
    if not is_binding(deletion, timestamp):
        deletion.binding_at = None
    audit.record(session, actor, "deletion.cancelled", deletion_id)
    if targets:
        refresh(session, [deletion_id])
    return view_of(session, deletion, caller)


def _cancel_targets(targets: Sequence[DeletionTarget]) -> bool:
    """Cancel all but completed targets. False if a worker has one, or if nothing is left to cancel."""
    statuses = {target.status for target in targets}
    if DeletionStatus.RUNNING in statuses or not statuses.intersection(CANCELLABLE):
        return False
    for target in targets:
        if target.status in CANCELLABLE:
            target.status = DeletionStatus.CANCELLED
    return True


def retry(
    session: Session, deletion_id: uuid.UUID, caller: str | None, actor: str
) -> tuple[DeletionView, frozenset[uuid.UUID]]:
    """Retry the failed models of a deletion. Also returns the models whose doorbell is to be rung."""
    deletion = find_deletion(session, deletion_id, caller)
    retried = _retry(session, [deletion_id], actor)
    if not retried.deletions:
        raise NothingToRetry(f"the deletion is {deletion.status} and has failed in no model")
    return view_of(session, deletion, caller), retried.model_ids


def retry_matching(session: Session, criteria: Criteria, actor: str) -> Retried:
    """Retry the failed deletions among the matches, oldest first, at most MAX_RETRIED."""
    ids = session.scalars(
        select(Deletion.id)
        .where(Deletion.status == DeletionStatus.FAILED, matches(criteria))
        .order_by(Deletion.received_at, Deletion.id)
        .limit(MAX_RETRIED)
    ).all()
    return _retry(session, ids, actor)


def extend(session: Session, deletion_id: uuid.UUID, until: datetime, reason: str, actor: str) -> DeletionView:
    """Extend the deadline, as far as the regulation allows."""
    deletion = find_deletion(session, deletion_id, caller=None)
    session.refresh(deletion, with_for_update=True)
    latest = deadlines.latest(deletion.regulation, deletion.received_at)
    if deletion.status not in OPEN_STATUSES:
        raise InvalidExtension(f"the deletion is {deletion.status}; its deadline can no longer be extended")
    if not deletion.due_at <= until <= latest:
        raise InvalidExtension(
            f"choose a time from {deletion.due_at.isoformat()} (the current deadline) to {latest.isoformat()} "
            f"(the latest that {deletion.regulation} allows)"
        )
    times = {"due_before": deletion.due_at.isoformat(), "due_now": until.isoformat()}
    deletion.due_at, deletion.extension_reason = until, reason
    audit.record(session, actor, "deletion.extended", deletion_id, reason=reason, **times)
    return view_of(session, deletion, caller=None)


def _retry(session: Session, deletion_ids: Sequence[uuid.UUID], actor: str) -> Retried:
    targets: list[DeletionTarget] = []
    for chunk in chunks(sorted(deletion_ids)):
        targets += _lock_targets(
            session, DeletionTarget.deletion_id.in_(chunk), DeletionTarget.status == DeletionStatus.FAILED
        )
    by_deletion = {key: list(group) for key, group in groupby(targets, lambda target: target.deletion_id)}
    for deletion_id, failed in by_deletion.items():
        failures = {str(target.model_id): target.failure for target in failed}
        audit.record(session, actor, "deletion.retried", deletion_id, failures=failures)
    not_before = current_time(session)
    for target in targets:
        target.status, target.attempts, target.not_before = DeletionStatus.PENDING, 0, not_before
        target.failure, target.batch_limit = None, None  # the failure is in the history now
    refresh(session, by_deletion)
    return Retried(len(by_deletion), frozenset(target.model_id for target in targets))


def _lock_targets(session: Session, *conditions: ColumnElement[bool]) -> Sequence[DeletionTarget]:
    return session.scalars(
        select(DeletionTarget)
        .where(*conditions)
        .order_by(DeletionTarget.deletion_id, DeletionTarget.model_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
