"""Selection of the deletions for one batch: those that are due, earliest deadline first, up to the limits."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from service.store.dialect import chunks
from service.store.models.registry import count_records
from service.store.states import DeletionStatus
from service.store.tables import Deletion, DeletionRecord, DeletionSubject, DeletionTarget, Record


@dataclass(frozen=True)
class Limits:
    """Largest size of a batch. One deletion is always selected, even if it exceeds the limits alone."""

    most_deletions: int = sys.maxsize
    largest_fraction: float = 1.0
    """Share of the model's current records that one batch may forget."""


UNLIMITED = Limits()


@dataclass(frozen=True)
class Selection:
    targets: Sequence[DeletionTarget]
    already_erased: Sequence[DeletionTarget]
    """Completed without a worker: an earlier deletion erased everything they name."""

    @property
    def deletion_ids(self) -> list[uuid.UUID]:
        return [target.deletion_id for target in (*self.targets, *self.already_erased)]


def select_deletions(session: Session, model_id: uuid.UUID, now: datetime, limits: Limits) -> Selection:
    """Select and lock the next batch's deletions. The caller holds the model's row and refreshes what is selected."""
    already_erased: list[DeletionTarget] = []
    record_count = count_records(session, model_id)
    while targets := _candidates(session, model_id, now, limits.most_deletions):
        remaining = remaining_records(session, model_id, [target.deletion_id for target in targets])
        for target in targets:
            if target.deletion_id not in remaining:
                target.status, target.failure = DeletionStatus.COMPLETED, None
                already_erased.append(target)
        session.flush()
        workable = [target for target in targets if target.status == DeletionStatus.PENDING]
        if workable:
            if len(set().union(*remaining.values())) == record_count:
                return Selection(workable, already_erased)  # the model is destroyed, so no limit on computing applies
            fitting = _take_fitting(workable, remaining, limits.most_deletions, limits.largest_fraction * record_count)
            return Selection(fitting, already_erased)
    return Selection([], already_erased)


def _candidates(session: Session, model_id: uuid.UUID, now: datetime, most: int) -> Sequence[DeletionTarget]:
    """Return the due deletions by deadline. None joins before its window ends: until then its caller may cancel it."""
    ordered = session.scalars(
        select(Deletion.id)
        .join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id)
        .where(DeletionTarget.model_id == model_id, DeletionTarget.status == DeletionStatus.PENDING)
        .where(DeletionTarget.not_before <= now)
        .order_by(Deletion.due_at, Deletion.received_at, Deletion.id)
        .limit(most)
    ).all()
    locked = _lock_pending(session, model_id, ordered)
    return [locked[deletion_id] for deletion_id in ordered if deletion_id in locked]


def _lock_pending(
    session: Session, model_id: uuid.UUID, deletion_ids: Sequence[uuid.UUID]
) -> Mapping[uuid.UUID, DeletionTarget]:
    """Lock in the same order as people's changes do (deletions/interventions.py), so that the two cannot deadlock."""
    pending = select(DeletionTarget).where(
        DeletionTarget.model_id == model_id, DeletionTarget.status == DeletionStatus.PENDING
    )
    locking = pending.order_by(DeletionTarget.deletion_id).with_for_update().execution_options(populate_existing=True)
    return {
        target.deletion_id: target
        for chunk in chunks(sorted(deletion_ids))
        for target in session.scalars(locking.where(DeletionTarget.deletion_id.in_(chunk)))
    }


def remaining_records(
    session: Session, model_id: uuid.UUID, deletion_ids: Sequence[uuid.UUID]
) -> Mapping[uuid.UUID, set[int]]:
    """Map each deletion to the model's records it still has to forget. Deletions with none left are missing."""
    of_subjects = select(DeletionSubject.deletion_id, Record.record).join(
        Record, Record.subject_id == DeletionSubject.subject_id
    )
    named = select(DeletionRecord.deletion_id, Record.record).join(
        Record, and_(Record.model_id == DeletionRecord.model_id, Record.record == DeletionRecord.record)
    )
    remaining: dict[uuid.UUID, set[int]] = {}
    for chunk in chunks(deletion_ids):
        for query, column in ((of_subjects, DeletionSubject.deletion_id), (named, DeletionRecord.deletion_id)):
            for deletion_id, record in session.execute(query.where(Record.model_id == model_id, column.in_(chunk))):
                remaining.setdefault(deletion_id, set()).add(record)
    return remaining


def _take_fitting(
    targets: Sequence[DeletionTarget], remaining: Mapping[uuid.UUID, set[int]], most_deletions: int, most_records: float
) -> Sequence[DeletionTarget]:
    """Take targets from the front, up to the smallest limit among them. None is skipped: they are in deadline order."""
    fitting: list[DeletionTarget] = []
    records: set[int] = set()
    for target in targets:
        most_deletions = min(most_deletions, target.batch_limit or most_deletions)
        new_records = remaining[target.deletion_id] - records
        if fitting and (len(fitting) >= most_deletions or len(records) + len(new_records) > most_records):
            break
        fitting.append(target)
        records |= new_records
    return fitting
