"""The life of a deletion: pending -> running -> completed, or failed. Each change of state is in this file."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
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
    deletion = session.get(Deletion, deletion_id)
    if deletion is None or (caller is not None and deletion.caller != caller):
        raise NotFound(f"there is no deletion {deletion_id}")
    return view(session, deletion)


def view(session: Session, deletion: Deletion) -> DeletionView:
    commitments = session.scalars(
        select(DeletionSubject.commitment).where(DeletionSubject.deletion_id == deletion.id)
    ).all()
    rows = session.execute(
        select(DeletionTarget, Batch, Certificate.id)
        .outerjoin(Batch, Batch.id == DeletionTarget.batch_id)
        .outerjoin(
            Certificate,
            (Certificate.deletion_id == DeletionTarget.deletion_id) & (Certificate.model_id == DeletionTarget.model_id),
        )
        .where(DeletionTarget.deletion_id == deletion.id)
        .order_by(DeletionTarget.model_id)
    )
    return DeletionView(deletion, commitments, [_target_view(*row) for row in rows])


def refresh(session: Session, deletion_ids: Iterable[uuid.UUID], nothing_to_do: str = ALREADY_ERASED) -> None:
    """Derive each deletion's state from its targets. Called in every transaction that changes a target."""
    session.flush()
    for deletion_id in deletion_ids:
        deletion = session.get_one(Deletion, deletion_id)
        statuses = set(session.scalars(select(DeletionTarget.status).where(DeletionTarget.deletion_id == deletion_id)))
        deletion.status = _overall(statuses)
        if deletion.status == DeletionStatus.COMPLETED and deletion.completed_at is None:
            deletion.completed_at = now()
            certified = session.scalar(select(Certificate.id).where(Certificate.deletion_id == deletion_id).limit(1))
            deletion.outcome = None if certified else nothing_to_do
            audit.record(session, "lethe", "deletion.completed", deletion_id)


def _overall(statuses: set[str]) -> DeletionStatus:
    for status in (DeletionStatus.RUNNING, DeletionStatus.PENDING, DeletionStatus.FAILED):
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


def _target_view(target: DeletionTarget, batch: Batch | None, certificate_id: uuid.UUID | None) -> TargetView:
    running = batch if batch and target.status == DeletionStatus.RUNNING else None
    return TargetView(
        model_id=target.model_id,
        status=target.status,
        attempts=target.attempts,
        failure=target.failure,
        phase=running.phase if running else None,
        percent=running.percent if running else None,
        certificate_id=certificate_id,
    )
