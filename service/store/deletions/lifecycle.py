"""Lifecycle of a deletion: pending -> running -> completed, failed or cancelled. Always derived from its targets.

Creation inserts the targets (creation.py). Workers change them (store/batches), people do in interventions.py. Each of
these calls `refresh` in the same transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.callbacks import outbox
from service.store.deletions.bodies import forget_bodies
from service.store.dialect import CLOCK, chunks
from service.store.states import DeletionStatus
from service.store.tables import Certificate, Deletion, DeletionTarget

OPEN_STATUSES = (DeletionStatus.PENDING, DeletionStatus.RUNNING, DeletionStatus.FAILED)
"""Neither completed nor cancelled: the deadline still counts."""
ALREADY_ERASED = "The subject's records were erased by an earlier deletion; there was nothing left to forget."


def refresh(session: Session, deletion_ids: Iterable[uuid.UUID]) -> None:
    """Derive the status of each deletion from its targets, and queue callbacks for the changes.

    Called in every transaction that changes a target.

    The rows are locked before their targets are read: if two workers finish two models of one deletion at the same
    time, the second sees what the first did. They are locked in one order, so that transactions do not deadlock.
    """
    session.flush()
    for chunk in chunks(sorted(set(deletion_ids))):
        _refresh_chunk(session, chunk)


def _refresh_chunk(session: Session, ids: Sequence[uuid.UUID]) -> None:
    """Work on sets of rows: an object for each row would take several times as long."""
    before = _lock_statuses(session, ids)
    target_statuses: dict[uuid.UUID, set[str]] = {deletion_id: set() for deletion_id in ids}
    for deletion_id, status in session.execute(
        select(DeletionTarget.deletion_id, DeletionTarget.status).distinct().where(DeletionTarget.deletion_id.in_(ids))
    ):
        target_statuses[deletion_id].add(status)
    after = {deletion_id: _overall_status(target_statuses[deletion_id]) for deletion_id in before}
    changed = [deletion_id for deletion_id in before if after[deletion_id] != before[deletion_id]]
    for status in {after[deletion_id] for deletion_id in changed}:
        with_status = [deletion_id for deletion_id in changed if after[deletion_id] == status]
        session.execute(update(Deletion).where(Deletion.id.in_(with_status)).values(status=status))
    forget_bodies(session, [deletion_id for deletion_id in changed if after[deletion_id] not in OPEN_STATUSES])
    _complete(session, [deletion_id for deletion_id in changed if after[deletion_id] == DeletionStatus.COMPLETED])
    _enqueue_callbacks(session, {deletion_id: before[deletion_id] for deletion_id in changed}, absent=False)


def end_absent(session: Session, deletion_ids: Sequence[uuid.UUID], status: DeletionStatus) -> None:
    """Complete or cancel pending deletions of what no model held. They have no targets to derive a status from."""
    is_completed = status == DeletionStatus.COMPLETED
    for chunk in chunks(deletion_ids):
        change = update(Deletion).where(Deletion.id.in_(chunk))
        session.execute(change.values(status=status, completed_at=CLOCK if is_completed else None))
        forget_bodies(session, chunk)
        _enqueue_callbacks(session, dict.fromkeys(chunk, DeletionStatus.PENDING), absent=is_completed)


def _enqueue_callbacks(session: Session, before: Mapping[uuid.UUID, str], *, absent: bool) -> None:
    """Queue callbacks for changes from the statuses before."""
    query = select(Deletion).where(Deletion.id.in_(before), Deletion.callback_urls.is_not(None))
    changed = session.scalars(query.execution_options(populate_existing=True))
    outbox.enqueue(session, [outbox.Change(deletion, before[deletion.id], absent=absent) for deletion in changed])


def _lock_statuses(session: Session, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    query = select(Deletion.id, Deletion.status).where(Deletion.id.in_(ids)).order_by(Deletion.id).with_for_update()
    return {row.id: row.status for row in session.execute(query)}


def _complete(session: Session, ids: Sequence[uuid.UUID]) -> None:
    if not ids:
        return
    certified = set(session.scalars(select(Certificate.deletion_id).where(Certificate.deletion_id.in_(ids))))
    session.execute(update(Deletion).where(Deletion.id.in_(ids)).values(completed_at=CLOCK, outcome=None))
    erased = [deletion_id for deletion_id in ids if deletion_id not in certified]
    if erased:
        session.execute(update(Deletion).where(Deletion.id.in_(erased)).values(outcome=ALREADY_ERASED))
    audit.record_each(session, "lethe", "deletion.completed", {deletion_id: {} for deletion_id in ids})


def _overall_status(statuses: set[str]) -> DeletionStatus:
    for status in (DeletionStatus.RUNNING, DeletionStatus.PENDING, DeletionStatus.FAILED, DeletionStatus.CANCELLED):
        if status in statuses:
            return status
    return DeletionStatus.COMPLETED
