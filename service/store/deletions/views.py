"""Deletions as they are read: the row with its subjects, records and the progress in each model."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.store.clock import current_time
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

MIN_PERCENT = 1.0
"""Below it the pace is too uncertain to extrapolate: the estimate could lie beyond the calendar."""


@dataclass(frozen=True)
class NamedRecord:
    """A row of a model's data set, by its number at registration."""

    model_id: uuid.UUID
    record: int

    def to_json(self) -> dict[str, str | int]:
        """Return the form used in receipts and in the audit trail."""
        return {"model": str(self.model_id), "record": self.record}


@dataclass(frozen=True)
class DeletionRow:
    """A deletion as it is inserted. Creating a mapped object would take ten times as long."""

    id: uuid.UUID
    caller: str
    regulation: str
    status: str
    outcome: str | None
    request_id: str
    callback_urls: list[str] | None
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    body_id: uuid.UUID
    binding_at: datetime | None
    models: list[str] | None = None
    extension_reason: str | None = None


@dataclass(frozen=True)
class TargetView:
    """Progress of a deletion in one model."""

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
    """A deletion with everything that is shown of it."""

    deletion: Deletion | DeletionRow
    commitments: Sequence[str]
    targets: Sequence[TargetView]
    records: Sequence[NamedRecord] = ()
    is_concealed: bool = False
    """Whether its outcome and its models are left out."""

    def as_shown_to_caller(self, timestamp: datetime) -> DeletionView:
        """Return the view without what depends on who is held, as long as or since its caller could cancel it."""
        return self if is_binding(self.deletion, timestamp) else replace(self, targets=(), is_concealed=True)


def is_binding(deletion: Deletion | DeletionRow, timestamp: datetime) -> bool:
    """Whether its caller can no longer cancel it. Never, if it was cancelled in time."""
    return deletion.binding_at is not None and deletion.binding_at <= timestamp


def find_deletion(session: Session, deletion_id: uuid.UUID, caller: str | None) -> Deletion:
    """Return the row of a deletion. With `caller` given, only that caller's deletions are found."""
    deletion = session.get(Deletion, deletion_id)
    if deletion is None or (caller is not None and deletion.caller != caller):
        raise NotFound(f"deletion {deletion_id} not found")
    return deletion


def find_view(session: Session, deletion_id: uuid.UUID, caller: str | None) -> DeletionView:
    """Return the view of a deletion. With `caller` given, only that caller's deletions are found, as shown to it."""
    return view_of(session, find_deletion(session, deletion_id, caller), caller)


def view_of(session: Session, deletion: Deletion, caller: str | None) -> DeletionView:
    return views_shown_to(session, [deletion], caller)[0]


def views_shown_to(session: Session, deletions: Sequence[Deletion], caller: str | None) -> Sequence[DeletionView]:
    """Return the views as they are shown to their caller; with None, as they are shown to operators and auditors."""
    views = views_of(session, deletions)
    if caller is None:
        return views
    timestamp = current_time(session)
    return [view.as_shown_to_caller(timestamp) for view in views]


def views_of(session: Session, deletions: Sequence[Deletion]) -> Sequence[DeletionView]:
    """Return the whole view of each deletion, in three queries whatever their number."""
    ids = [deletion.id for deletion in deletions]
    commitments: dict[uuid.UUID, list[str]] = {deletion_id: [] for deletion_id in ids}
    for subject in session.execute(
        select(DeletionSubject.deletion_id, DeletionSubject.commitment)
        .where(DeletionSubject.deletion_id.in_(ids))
        .order_by(DeletionSubject.deletion_id, DeletionSubject.commitment)
    ):
        commitments[subject.deletion_id].append(subject.commitment)
    targets: dict[uuid.UUID, list[TargetView]] = {deletion_id: [] for deletion_id in ids}
    for target, device, batch, certificate_id in session.execute(_target_query(ids)):
        targets[target.deletion_id].append(_target_view(target, device, batch, certificate_id))
    records: dict[uuid.UUID, list[NamedRecord]] = {deletion_id: [] for deletion_id in ids}
    for record in session.scalars(_record_query(ids)):
        records[record.deletion_id].append(NamedRecord(record.model_id, record.record))
    return [
        DeletionView(deletion, commitments[deletion.id], targets[deletion.id], records[deletion.id])
        for deletion in deletions
    ]


def _target_query(deletion_ids: Sequence[uuid.UUID]) -> Select[DeletionTarget, str, Batch, uuid.UUID]:
    return (
        select(DeletionTarget, Model.device, Batch, Certificate.id)
        .join(Model, Model.id == DeletionTarget.model_id)
        .outerjoin(Batch, Batch.id == DeletionTarget.batch_id)
        .outerjoin(
            Certificate,
            (Certificate.deletion_id == DeletionTarget.deletion_id)
            & (Certificate.model_id == DeletionTarget.model_id)
            & Certificate.replaced_by.is_(None),
        )
        .where(DeletionTarget.deletion_id.in_(deletion_ids))
        .order_by(DeletionTarget.deletion_id, DeletionTarget.model_id)
    )


def _record_query(deletion_ids: Sequence[uuid.UUID]) -> Select[DeletionRecord]:
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
    """Extrapolate at the pace so far: start + elapsed * 100 / percent. None while the pace is unknown."""
    return started_at + (now() - started_at) * (100 / percent) if percent >= MIN_PERCENT else None
