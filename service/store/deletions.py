"""The life of a deletion: pending -> running -> completed, failed or cancelled; always derived from its targets.

Workers change targets in batches.py and publishing.py, people in interventions.py; all of them call `refresh`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.store import audit, deadlines
from service.store.errors import NotFound
from service.store.identities import anonymous_commitment, commitment, find_subjects
from service.store.tables import (
    Batch,
    Certificate,
    Deletion,
    DeletionStatus,
    DeletionSubject,
    DeletionTarget,
    Model,
    Record,
    Subject,
    now,
)

NOBODY = "No model holds a record of this subject; there was nothing to forget."
OPEN = (DeletionStatus.PENDING, DeletionStatus.RUNNING, DeletionStatus.FAILED)
"""Not done and not taken back: the deadline still counts."""
LEAST_PERCENT = 1.0
"""Below it the pace is a guess about nothing, and the end could be beyond any calendar."""
REFRESH_CHUNK = 5_000
"""SQLite allows 32,766 bound values in one statement."""
ALREADY_ERASED = "The subject's records were erased by an earlier deletion; there was nothing left to forget."


@dataclass(frozen=True)
class NewDeletion:
    """A request as it leaves the door: identities are keyed hashes already."""

    caller: str
    regulation: str
    lookups: Sequence[bytes]
    model_ids: Sequence[uuid.UUID] | None
    request_id: str
    window_seconds: float
    """How long to wait for others to share a batch with."""


@dataclass(frozen=True)
class TargetView:
    model_id: uuid.UUID
    status: str
    attempts: int
    failure: str | None
    phase: str | None
    percent: float | None
    estimated_end: datetime | None
    certificate_id: uuid.UUID | None


@dataclass(frozen=True)
class DeletionView:
    """A deletion with all that is shown of it."""

    deletion: Deletion
    commitments: Sequence[str]
    targets: Sequence[TargetView]


def create(session: Session, new: NewDeletion) -> DeletionView:
    """Store a request for every model that holds one of its subjects, or complete it if none does."""
    if new.model_ids is not None:
        _require_models(session, new.model_ids)
    subjects, received_at = find_subjects(session, new.lookups), now()
    deletion = Deletion(
        id=uuid.uuid4(),
        caller=new.caller,
        regulation=new.regulation,
        status=DeletionStatus.PENDING,
        request_id=new.request_id,
        received_at=received_at,
        due_at=deadlines.due(new.regulation, received_at),
    )
    session.add(deletion)
    session.flush()
    commitments = [_add_subject(session, deletion.id, lookup, subjects.get(lookup)) for lookup in new.lookups]
    for model_id in _models_holding(session, [s.id for s in subjects.values()], new.model_ids):
        session.add(
            DeletionTarget(
                deletion_id=deletion.id,
                model_id=model_id,
                status=DeletionStatus.PENDING,
                not_before=deletion.received_at + timedelta(seconds=new.window_seconds),
            )
        )
    session.flush()
    audit.record(session, new.caller, "deletion.received", deletion.id, subjects=commitments)
    refresh(session, [deletion.id], nothing_to_do=NOBODY)
    return view(session, deletion)


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
    """Each deletion with all that is shown of it, in two queries however many there are."""
    ids = [deletion.id for deletion in deletions]
    commitments: dict[uuid.UUID, list[str]] = {deletion_id: [] for deletion_id in ids}
    for subject in session.execute(
        select(DeletionSubject.deletion_id, DeletionSubject.commitment)
        .where(DeletionSubject.deletion_id.in_(ids))
        .order_by(DeletionSubject.deletion_id, DeletionSubject.commitment)
    ):
        commitments[subject.deletion_id].append(subject.commitment)
    targets: dict[uuid.UUID, list[TargetView]] = {deletion_id: [] for deletion_id in ids}
    for target, batch, certificate_id in session.execute(_targets_of(ids)):
        targets[target.deletion_id].append(_target_view(target, batch, certificate_id))
    return [DeletionView(deletion, commitments[deletion.id], targets[deletion.id]) for deletion in deletions]


def refresh(session: Session, deletion_ids: Iterable[uuid.UUID], nothing_to_do: str = ALREADY_ERASED) -> None:
    """Derive each deletion's state from its targets. Called in every transaction that changes a target.

    The rows are locked before their targets are read: of two workers that finish two models of one deletion at the
    same moment, the second sees what the first did. One order for everybody, so that they cannot deadlock.
    """
    session.flush()
    ids = sorted(set(deletion_ids))
    for start in range(0, len(ids), REFRESH_CHUNK):
        _refresh_chunk(session, ids[start : start + REFRESH_CHUNK], nothing_to_do)


def _refresh_chunk(session: Session, ids: Sequence[uuid.UUID], nothing_to_do: str) -> None:
    locked = session.scalars(
        select(Deletion)
        .where(Deletion.id.in_(ids))
        .order_by(Deletion.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
    statuses: dict[uuid.UUID, set[str]] = {deletion_id: set() for deletion_id in ids}
    for deletion_id, status in session.execute(
        select(DeletionTarget.deletion_id, DeletionTarget.status).distinct().where(DeletionTarget.deletion_id.in_(ids))
    ):
        statuses[deletion_id].add(status)
    certified = set(session.scalars(select(Certificate.deletion_id).where(Certificate.deletion_id.in_(ids))))
    for deletion in locked:
        deletion.status = _overall(statuses[deletion.id])
        if deletion.status == DeletionStatus.COMPLETED and deletion.completed_at is None:
            deletion.completed_at = now()
            deletion.outcome = None if deletion.id in certified else nothing_to_do
            audit.record(session, "lethe", "deletion.completed", deletion.id)


def _overall(statuses: set[str]) -> DeletionStatus:
    for status in (DeletionStatus.RUNNING, DeletionStatus.PENDING, DeletionStatus.FAILED, DeletionStatus.CANCELLED):
        if status in statuses:
            return status
    return DeletionStatus.COMPLETED


def _add_subject(session: Session, deletion_id: uuid.UUID, lookup: bytes, subject: Subject | None) -> str:
    name = commitment(subject.key, lookup) if subject else anonymous_commitment(lookup)
    session.add(DeletionSubject(deletion_id=deletion_id, commitment=name, subject_id=subject.id if subject else None))
    return name


def _models_holding(
    session: Session, subject_ids: Sequence[uuid.UUID], wanted: Sequence[uuid.UUID] | None
) -> Sequence[uuid.UUID]:
    query = select(Record.model_id).distinct().where(Record.subject_id.in_(subject_ids))
    if wanted is not None:
        query = query.where(Record.model_id.in_(wanted))
    return session.scalars(query).all()


def _require_models(session: Session, model_ids: Sequence[uuid.UUID]) -> None:
    known = set(session.scalars(select(Model.id).where(Model.id.in_(model_ids))))
    for model_id in model_ids:
        if model_id not in known:
            raise NotFound(f"there is no model {model_id}; leave `models` out to reach every model")


def _targets_of(deletion_ids: Sequence[uuid.UUID]) -> Select[DeletionTarget, Batch, uuid.UUID]:
    return (
        select(DeletionTarget, Batch, Certificate.id)
        .outerjoin(Batch, Batch.id == DeletionTarget.batch_id)
        .outerjoin(
            Certificate,
            (Certificate.deletion_id == DeletionTarget.deletion_id) & (Certificate.model_id == DeletionTarget.model_id),
        )
        .where(DeletionTarget.deletion_id.in_(deletion_ids))
        .order_by(DeletionTarget.deletion_id, DeletionTarget.model_id)
    )


def _target_view(target: DeletionTarget, batch: Batch | None, certificate_id: uuid.UUID | None) -> TargetView:
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
    )


def _estimated_end(started_at: datetime, percent: float) -> datetime | None:
    """As if the rest went as fast as what is done: start + elapsed * 100 / percent. None before there is a pace."""
    return started_at + (now() - started_at) * (100 / percent) if percent >= LEAST_PERCENT else None
