"""Which deletions of a model one batch takes: those that are due, the earliest deadline first, up to the limits."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from service.store.batches.due import is_due
from service.store.dialect import chunks
from service.store.models.registry import current_version
from service.store.states import DeletionStatus
from service.store.tables import Deletion, DeletionRecord, DeletionSubject, DeletionTarget, Record


@dataclass(frozen=True)
class Limits:
    """How large a batch may be. One deletion is always taken, even if it is more by itself."""

    most_deletions: int = sys.maxsize
    largest_fraction: float = 1.0
    """Of the model's current records."""


UNLIMITED = Limits()


@dataclass(frozen=True)
class Chosen:
    taken: Sequence[DeletionTarget]
    erased: Sequence[DeletionTarget]
    """These need no worker: an earlier deletion erased all that they name. They are completed."""

    @property
    def deletion_ids(self) -> list[uuid.UUID]:
        return [target.deletion_id for target in (*self.taken, *self.erased)]


def choose(session: Session, model_id: uuid.UUID, moment: datetime, window_seconds: float, limits: Limits) -> Chosen:
    """Lock what the next batch takes. The caller holds the model's row, and says of what is chosen that it changed."""
    erased: list[DeletionTarget] = []
    most_records = limits.largest_fraction * current_version(session, model_id).record_count
    while targets := _candidates(session, model_id, moment, window_seconds, limits.most_deletions):
        held = held_records(session, model_id, [target.deletion_id for target in targets])
        for target in targets:
            if target.deletion_id not in held:
                target.status, target.failure = DeletionStatus.COMPLETED, None
                erased.append(target)
        session.flush()
        workable = [target for target in targets if target.status == DeletionStatus.PENDING]
        if workable:
            return Chosen(_fitting(workable, held, limits.most_deletions, most_records), erased)
    return Chosen([], erased)


def _candidates(
    session: Session, model_id: uuid.UUID, moment: datetime, window_seconds: float, most: int
) -> Sequence[DeletionTarget]:
    """Once one deletion is due, those still inside their batch window ride along; those in backoff do not."""
    if not is_due(session, model_id, moment):
        return []
    in_window = and_(
        DeletionTarget.attempts == 0, DeletionTarget.not_before <= moment + timedelta(seconds=window_seconds)
    )
    ordered = session.scalars(
        select(Deletion.id)
        .join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id)
        .where(DeletionTarget.model_id == model_id, DeletionTarget.status == DeletionStatus.PENDING)
        .where(or_(DeletionTarget.not_before <= moment, in_window))
        .order_by(Deletion.due_at, Deletion.received_at, Deletion.id)
        .limit(most)
    ).all()
    locked = _locked(session, model_id, ordered)
    return [locked[deletion_id] for deletion_id in ordered if deletion_id in locked]


def _locked(
    session: Session, model_id: uuid.UUID, deletion_ids: Sequence[uuid.UUID]
) -> Mapping[uuid.UUID, DeletionTarget]:
    """Locked in the order in which people's changes lock them (interventions.py), so that the two cannot deadlock."""
    pending = select(DeletionTarget).where(
        DeletionTarget.model_id == model_id, DeletionTarget.status == DeletionStatus.PENDING
    )
    locking = pending.order_by(DeletionTarget.deletion_id).with_for_update().execution_options(populate_existing=True)
    return {
        target.deletion_id: target
        for chunk in chunks(sorted(deletion_ids))
        for target in session.scalars(locking.where(DeletionTarget.deletion_id.in_(chunk)))
    }


def held_records(
    session: Session, model_id: uuid.UUID, deletion_ids: Sequence[uuid.UUID]
) -> Mapping[uuid.UUID, set[int]]:
    """What each deletion has left to forget in this model; those with nothing left are not there."""
    of_subjects = select(DeletionSubject.deletion_id, Record.record).join(
        Record, Record.subject_id == DeletionSubject.subject_id
    )
    named = select(DeletionRecord.deletion_id, Record.record).join(
        Record, and_(Record.model_id == DeletionRecord.model_id, Record.record == DeletionRecord.record)
    )
    held: dict[uuid.UUID, set[int]] = {}
    for chunk in chunks(deletion_ids):
        for query, column in ((of_subjects, DeletionSubject.deletion_id), (named, DeletionRecord.deletion_id)):
            for deletion_id, record in session.execute(query.where(Record.model_id == model_id, column.in_(chunk))):
                held.setdefault(deletion_id, set()).add(record)
    return held


def _fitting(
    targets: Sequence[DeletionTarget], held: Mapping[uuid.UUID, set[int]], most_deletions: int, most_records: float
) -> Sequence[DeletionTarget]:
    """The first ones, up to the smallest limit among them. None is passed over: the order is that of the deadlines."""
    taken: list[DeletionTarget] = []
    records: set[int] = set()
    for target in targets:
        most_deletions = min(most_deletions, target.batch_limit or most_deletions)
        more = held[target.deletion_id] - records
        if taken and (len(taken) >= most_deletions or len(records) + len(more) > most_records):
            break
        taken.append(target)
        records |= more
    return taken
