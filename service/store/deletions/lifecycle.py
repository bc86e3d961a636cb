"""The life of a deletion: pending -> running -> completed, failed or cancelled; always derived from its targets.

Intake makes them (intake.py). Workers change targets in batches.py and publishing.py, people in interventions.py; all
of these call `refresh`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.callbacks import outbox
from service.store.deletions.received import Received
from service.store.errors import NotFound
from service.store.states import DeletionStatus, Device
from service.store.tables import (
    Batch,
    Certificate,
    Deletion,
    DeletionRecord,
    DeletionSubject,
    DeletionTarget,
    Model,
    now,
)

OPEN = (DeletionStatus.PENDING, DeletionStatus.RUNNING, DeletionStatus.FAILED)
"""Not done and not taken back: the deadline still counts."""
LEAST_PERCENT = 1.0
"""Below it the pace is a guess about nothing, and the end could be beyond any calendar."""
REFRESH_CHUNK = 5_000
"""SQLite allows 32,766 bound values in one statement."""
ALREADY_ERASED = "The subject's records were erased by an earlier deletion; there was nothing left to forget."


@dataclass(frozen=True)
class NamedRecord:
    """A row of a model's data set, by its number at registration."""

    model_id: uuid.UUID
    record: int

    def named(self) -> dict[str, str | int]:
        """As receipts and the audit trail call it."""
        return {"model": str(self.model_id), "record": self.record}


@dataclass(frozen=True)
class TargetView:
    model_id: uuid.UUID
    status: str
    attempts: int = 0
    failure: str | None = None
    phase: str | None = None
    percent: float | None = None
    estimated_end: datetime | None = None
    certificate_id: uuid.UUID | None = None
    batch_limit: int | None = None
    device: str = Device.CPU


@dataclass(frozen=True)
class DeletionView:
    """A deletion with all that is shown of it."""

    deletion: Deletion | Received
    commitments: Sequence[str]
    targets: Sequence[TargetView]
    records: Sequence[NamedRecord] = ()


def find(session: Session, deletion_id: uuid.UUID, caller: str | None) -> DeletionView:
    """One deletion; with `caller` given, only if it is theirs."""
    return view(session, find_row(session, deletion_id, caller))


def find_row(session: Session, deletion_id: uuid.UUID, caller: str | None) -> Deletion:
    deletion = session.get(Deletion, deletion_id)
    if deletion is None or (caller is not None and deletion.caller != caller):
        raise NotFound(f"there is no deletion {deletion_id}")
    return deletion


def view(session: Session, deletion: Deletion) -> DeletionView:
    return views(session, [deletion])[0]


def views(session: Session, deletions: Sequence[Deletion]) -> Sequence[DeletionView]:
    """Each deletion with all that is shown of it, in three queries however many there are."""
    ids = [deletion.id for deletion in deletions]
    commitments: dict[uuid.UUID, list[str]] = {deletion_id: [] for deletion_id in ids}
    for subject in session.execute(
        select(DeletionSubject.deletion_id, DeletionSubject.commitment)
        .where(DeletionSubject.deletion_id.in_(ids))
        .order_by(DeletionSubject.deletion_id, DeletionSubject.commitment)
    ):
        commitments[subject.deletion_id].append(subject.commitment)
    targets: dict[uuid.UUID, list[TargetView]] = {deletion_id: [] for deletion_id in ids}
    for target, device, batch, certificate_id in session.execute(_targets_of(ids)):
        targets[target.deletion_id].append(_target_view(target, device, batch, certificate_id))
    records: dict[uuid.UUID, list[NamedRecord]] = {deletion_id: [] for deletion_id in ids}
    for record in session.scalars(_records_of(ids)):
        records[record.deletion_id].append(NamedRecord(record.model_id, record.record))
    return [DeletionView(one, commitments[one.id], targets[one.id], records[one.id]) for one in deletions]


def refresh(session: Session, deletion_ids: Iterable[uuid.UUID]) -> None:
    """Derive each deletion's state from its targets, and note whom to tell of it.

    Called in every transaction that changes a target.

    The rows are locked before their targets are read: of two workers that finish two models of one deletion at the
    same moment, the second sees what the first did. One order for everybody, so that they cannot deadlock.
    """
    session.flush()
    ids = sorted(set(deletion_ids))
    for start in range(0, len(ids), REFRESH_CHUNK):
        _refresh_chunk(session, ids[start : start + REFRESH_CHUNK])


def _refresh_chunk(session: Session, ids: Sequence[uuid.UUID]) -> None:
    """By the set: an object for each row would take several times as long."""
    before = dict(_locked(session, ids))
    statuses: dict[uuid.UUID, set[str]] = {deletion_id: set() for deletion_id in ids}
    for deletion_id, status in session.execute(
        select(DeletionTarget.deletion_id, DeletionTarget.status).distinct().where(DeletionTarget.deletion_id.in_(ids))
    ):
        statuses[deletion_id].add(status)
    after = {deletion_id: _overall(statuses[deletion_id]) for deletion_id in before}
    changed = [deletion_id for deletion_id in before if after[deletion_id] != before[deletion_id]]
    for status in {after[deletion_id] for deletion_id in changed}:
        these = [deletion_id for deletion_id in changed if after[deletion_id] == status]
        session.execute(update(Deletion).where(Deletion.id.in_(these)).values(status=status))
    _complete(session, [deletion_id for deletion_id in changed if after[deletion_id] == DeletionStatus.COMPLETED])
    told = select(Deletion).where(Deletion.id.in_(changed), Deletion.callback_urls.is_not(None))
    outbox.enqueue(
        session,
        [outbox.Change(one, before[one.id], absent=not statuses[one.id]) for one in session.scalars(told)],
    )


def _locked(session: Session, ids: Sequence[uuid.UUID]) -> Iterable[tuple[uuid.UUID, str]]:
    query = select(Deletion.id, Deletion.status).where(Deletion.id.in_(ids)).order_by(Deletion.id).with_for_update()
    return [(found.id, found.status) for found in session.execute(query)]


def _complete(session: Session, ids: Sequence[uuid.UUID]) -> None:
    if not ids:
        return
    certified = set(session.scalars(select(Certificate.deletion_id).where(Certificate.deletion_id.in_(ids))))
    session.execute(update(Deletion).where(Deletion.id.in_(ids)).values(completed_at=now(), outcome=None))
    erased = [deletion_id for deletion_id in ids if deletion_id not in certified]
    if erased:
        session.execute(update(Deletion).where(Deletion.id.in_(erased)).values(outcome=ALREADY_ERASED))
    audit.record_each(session, "lethe", "deletion.completed", {deletion_id: {} for deletion_id in ids})


def _overall(statuses: set[str]) -> DeletionStatus:
    for status in (DeletionStatus.RUNNING, DeletionStatus.PENDING, DeletionStatus.FAILED, DeletionStatus.CANCELLED):
        if status in statuses:
            return status
    return DeletionStatus.COMPLETED


def _targets_of(deletion_ids: Sequence[uuid.UUID]) -> Select[DeletionTarget, str, Batch, uuid.UUID]:
    return (
        select(DeletionTarget, Model.device, Batch, Certificate.id)
        .join(Model, Model.id == DeletionTarget.model_id)
        .outerjoin(Batch, Batch.id == DeletionTarget.batch_id)
        .outerjoin(
            Certificate,
            (Certificate.deletion_id == DeletionTarget.deletion_id) & (Certificate.model_id == DeletionTarget.model_id),
        )
        .where(DeletionTarget.deletion_id.in_(deletion_ids))
        .order_by(DeletionTarget.deletion_id, DeletionTarget.model_id)
    )


def _records_of(deletion_ids: Sequence[uuid.UUID]) -> Select[DeletionRecord]:
    return (
        select(DeletionRecord)
        .where(DeletionRecord.deletion_id.in_(deletion_ids))
        .order_by(DeletionRecord.deletion_id, DeletionRecord.model_id, DeletionRecord.record)
    )


def _target_view(
    target: DeletionTarget, device: str, batch: Batch | None, certificate_id: uuid.UUID | None
) -> TargetView:
    running = batch if batch and target.status == DeletionStatus.RUNNING else None
    return TargetView(
        model_id=target.model_id,
        status=target.status,
        attempts=target.attempts,
        failure=target.failure,
        phase=running.phase if running else None,
        percent=running.percent if running else None,
        estimated_end=_estimated_end(running.started_at, running.percent) if running else None,
        certificate_id=certificate_id,
        batch_limit=target.batch_limit,
        device=device,
    )


def _estimated_end(started_at: datetime, percent: float) -> datetime | None:
    """As if the rest went as fast as what is done: start + elapsed * 100 / percent. None before there is a pace."""
    return started_at + (now() - started_at) * (100 / percent) if percent >= LEAST_PERCENT else None
