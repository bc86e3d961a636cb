"""Batches: claim, keep, fail. A worker's transactions are short and none is open while it computes.

A batch is claimed and ended by conditional changes, so a duplicate doorbell does nothing and a worker that lost its
lease cannot publish (publishing.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from service.store import audit, deletions, policies
from service.store.errors import LeaseLost
from service.store.models import current_version
from service.store.states import BatchStatus, DeletionStatus
from service.store.tables import Batch, Deletion, DeletionRecord, DeletionSubject, DeletionTarget, Model, Record, now

WORKER_SILENT = "the worker stopped answering before it finished"
LONGEST_BACKOFF = timedelta(minutes=10)


@dataclass(frozen=True)
class Claim:
    """What a worker takes along: identifiers and numbers, no open transaction."""

    batch_id: uuid.UUID
    model_id: uuid.UUID
    family: str
    posterior_kind: str
    config: dict[str, Any]
    policy: dict[str, Any]
    posterior_digest: str
    dataset_digest: str
    never_seen_digest: str | None
    forgotten: Sequence[int]
    requests: Sequence[tuple[uuid.UUID, str]]
    """Each deletion with the request id that brought it, for the logs."""


@dataclass(frozen=True)
class ClaimTerms:
    """What a worker may take and for how long."""

    lease_seconds: float
    max_attempts: int
    window_seconds: float


def claim(session: Session, model_id: uuid.UUID, worker: str, terms: ClaimTerms) -> Claim | None:
    """Take all pending deletions of a model, or None if none is due or another worker is at it."""
    model = session.scalar(select(Model).where(Model.id == model_id).with_for_update())
    if model is None or not _is_free(session, model_id):
        return None
    targets = _workable(session, model_id, terms)
    if not targets:
        return None
    batch = Batch(
        id=uuid.uuid4(),
        model_id=model_id,
        status=BatchStatus.RUNNING,
        worker=worker,
        lease_expires_at=now() + timedelta(seconds=terms.lease_seconds),
    )
    session.add(batch)
    session.flush()
    for target in targets:
        target.status, target.batch_id, target.failure = DeletionStatus.RUNNING, batch.id, None
        target.attempts += 1
    deletions.refresh(session, [target.deletion_id for target in targets])
    audit.record(session, worker, "batch.claimed", batch.id, model=str(model_id), deletions=_ids(targets))
    return _claim_of(session, model, batch)


def heartbeat(
    session: Session,
    batch_id: uuid.UUID,
    lease_seconds: float,
    phase: str,
    percent: float,
    device: str | None = None,
    trace: dict[str, Any] | None = None,
) -> None:
    """Renew the lease and say how far the work is, where it runs and how it went so far."""
    expires = now() + timedelta(seconds=lease_seconds)
    renewed = session.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == BatchStatus.RUNNING)
        .values(lease_expires_at=expires, phase=phase, percent=percent, device=device, trace=trace)
        .returning(Batch.id)
    )
    if renewed.first() is None:
        raise LeaseLost(f"batch {batch_id} was taken over")


def fail(session: Session, batch_id: uuid.UUID, reason: str, *, permanent: bool, max_attempts: int) -> None:
    """Give the batch's deletions back for another attempt, later each time; or give up and say why."""
    batch = end(session, batch_id, BatchStatus.FAILED, failure=reason)
    targets = targets_of(session, batch_id)
    for target in targets:
        target.failure = reason
        given_up = permanent or target.attempts >= max_attempts
        target.status = DeletionStatus.FAILED if given_up else DeletionStatus.PENDING
        target.not_before = now() + min(timedelta(seconds=2**target.attempts), LONGEST_BACKOFF)
    deletions.refresh(session, [target.deletion_id for target in targets])
    audit.record(session, batch.worker, "batch.failed", batch_id, reason=reason, deletions=_ids(targets))


def models_to_ring(session: Session) -> Sequence[uuid.UUID]:
    """Models with work that nobody is doing: due deletions without a live batch, or a batch whose lease ran out."""
    live = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING, Batch.lease_expires_at > now())
    waiting = select(DeletionTarget.model_id).where(
        DeletionTarget.status == DeletionStatus.PENDING,
        DeletionTarget.not_before <= now(),
        DeletionTarget.model_id.not_in(live),
    )
    expired = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING, Batch.lease_expires_at <= now())
    return session.scalars(waiting.union(expired)).all()


def _is_free(session: Session, model_id: uuid.UUID) -> bool:
    """True when no batch runs; one whose lease ran out is ended here and its deletions set free."""
    running = session.scalar(select(Batch).where(Batch.model_id == model_id, Batch.status == BatchStatus.RUNNING))
    if running is None:
        return True
    if running.lease_expires_at > now():
        return False
    end(session, running.id, BatchStatus.ABANDONED, failure=WORKER_SILENT)
    for target in targets_of(session, running.id):
        target.status, target.failure = DeletionStatus.PENDING, WORKER_SILENT
    session.flush()
    audit.record(session, "lethe", "batch.abandoned", running.id, worker=running.worker)
    return True


def _due(session: Session, model_id: uuid.UUID, window_seconds: float) -> Sequence[DeletionTarget]:
    """Once one deletion is due, those still inside their batch window ride along; those in backoff do not."""
    moment = now()
    pending = session.scalars(
        select(DeletionTarget)
        .where(
            DeletionTarget.model_id == model_id,
            DeletionTarget.status == DeletionStatus.PENDING,
            DeletionTarget.not_before <= moment + timedelta(seconds=window_seconds),
        )
        .with_for_update()
    ).all()
    return pending if any(target.not_before <= moment for target in pending) else []


def _workable(session: Session, model_id: uuid.UUID, terms: ClaimTerms) -> Sequence[DeletionTarget]:
    """The due deletions, less those that need no worker: already erased, or too many workers were lost on them."""
    targets = _due(session, model_id, terms.window_seconds)
    holding = _with_records(session, model_id)
    for target in targets:
        if target.attempts >= terms.max_attempts:
            target.status = DeletionStatus.FAILED
        elif target.deletion_id not in holding:
            target.status, target.failure = DeletionStatus.COMPLETED, None
    settled = [target for target in targets if target.status != DeletionStatus.PENDING]
    deletions.refresh(session, [target.deletion_id for target in settled])
    return [target for target in targets if target.status == DeletionStatus.PENDING]


def _with_records(session: Session, model_id: uuid.UUID) -> set[uuid.UUID]:
    """The pending deletions that have something left to forget in this model."""
    of_subjects = select(DeletionSubject.deletion_id).join(Record, Record.subject_id == DeletionSubject.subject_id)
    named = select(DeletionRecord.deletion_id).join(
        Record, and_(Record.model_id == DeletionRecord.model_id, Record.record == DeletionRecord.record)
    )
    pending = select(DeletionTarget.deletion_id).where(
        DeletionTarget.model_id == model_id, DeletionTarget.status == DeletionStatus.PENDING
    )
    found = [
        query.where(Record.model_id == model_id, column.in_(pending))
        for query, column in ((of_subjects, DeletionSubject.deletion_id), (named, DeletionRecord.deletion_id))
    ]
    return set(session.scalars(found[0].union(found[1])))


def _claim_of(session: Session, model: Model, batch: Batch) -> Claim:
    version = current_version(session, model.id)
    requests = session.execute(
        select(Deletion.id, Deletion.request_id)
        .join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id)
        .where(DeletionTarget.batch_id == batch.id)
    )
    forgotten = select(Record.record).where(records_of(model.id, batch.id)).order_by(Record.record)
    return Claim(
        batch_id=batch.id,
        model_id=model.id,
        family=model.family,
        posterior_kind=model.posterior_kind,
        config=model.config,
        policy=policies.demanded(session, batch.id, model.policy),
        posterior_digest=version.posterior_digest,
        dataset_digest=version.dataset_digest,
        never_seen_digest=model.never_seen_digest,
        forgotten=session.scalars(forgotten).all(),
        requests=list(requests),
    )


def records_of(model_id: uuid.UUID, batch_id: uuid.UUID) -> ColumnElement[bool]:
    """True for the records, in this model, that the batch's deletions name or whose owners they name."""
    subjects = (
        select(DeletionSubject.subject_id)
        .join(DeletionTarget, DeletionTarget.deletion_id == DeletionSubject.deletion_id)
        .where(DeletionTarget.batch_id == batch_id)
    )
    named = (
        select(DeletionRecord.record)
        .join(DeletionTarget, DeletionTarget.deletion_id == DeletionRecord.deletion_id)
        .where(DeletionTarget.batch_id == batch_id, DeletionRecord.model_id == model_id)
    )
    return and_(Record.model_id == model_id, or_(Record.subject_id.in_(subjects), Record.record.in_(named)))


def end(session: Session, batch_id: uuid.UUID, status: BatchStatus, failure: str | None = None) -> Batch:
    """The fence: only a batch that still runs can be ended, and only once."""
    ended: Batch | None = session.scalar(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == BatchStatus.RUNNING)
        .values(status=status, finished_at=now(), failure=failure)
        .returning(Batch)
    )
    if ended is None:
        raise LeaseLost(f"batch {batch_id} was taken over; its result is dropped")
    return ended


def targets_of(session: Session, batch_id: uuid.UUID) -> Sequence[DeletionTarget]:
    return session.scalars(
        select(DeletionTarget).where(
            DeletionTarget.batch_id == batch_id, DeletionTarget.status == DeletionStatus.RUNNING
        )
    ).all()


def _ids(targets: Sequence[DeletionTarget]) -> list[str]:
    return [str(target.deletion_id) for target in targets]
