"""Life of a batch: claimed, kept alive, failed. A worker's transactions are short; none is open while it computes.

A batch is claimed and ended by conditional updates. So a duplicate doorbell does nothing, and a worker that lost its
lease cannot publish (publication.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.batches.selection import UNLIMITED, Limits, select_deletions
from service.store.batches.splitting import fail_or_split, half_size
from service.store.clock import current_time
from service.store.deletions.lifecycle import refresh
from service.store.dialect import CLOCK
from service.store.errors import LeaseLost
from service.store.models.policies import required_policy
from service.store.models.registry import current_version
from service.store.refreshes.ending import abandon_refresh
from service.store.states import BatchStatus, DeletionStatus
from service.store.tables import (
    Batch,
    BatchPart,
    Deletion,
    DeletionRecord,
    DeletionSubject,
    DeletionTarget,
    Model,
    Record,
)
from vocabulary.bound import Rung
from vocabulary.families import records_needed

DELETIONS_FIRST = "deletions of the model came first"
WORKER_SILENT = "the worker stopped answering before it finished"
LONGEST_BACKOFF = timedelta(minutes=10)


@dataclass(frozen=True)
class Claim:
    """What a worker needs for its batch: identifiers and numbers, no open transaction."""

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
    record_count: int
    """Records of the current version."""
    records_needed: int
    """Records that a model of this family and configuration needs."""
    requests: Sequence[tuple[uuid.UUID, str]]
    """Deletion ids, each with its request id for the logs."""

    @property
    def ends_model(self) -> bool:
        """Whether the batch leaves no records, or too few: then the model is destroyed."""
        return self.record_count - len(self.forgotten) < self.records_needed


@dataclass(frozen=True)
class ClaimTerms:
    """What a worker may claim and for how long."""

    lease_seconds: float
    max_attempts: int
    limits: Limits = UNLIMITED


def claim_batch(
    session: Session, model_id: uuid.UUID, worker: str, terms: ClaimTerms, turn: int | None = None
) -> Claim | None:
    """Claim the due deletions of a model. None if nothing is due or another worker holds a batch of the model.

    With `turn`, also None if a batch has begun since the doorbell was rung: that batch answered it. Otherwise each of
    the many doorbells of a busy model would become a batch, ahead of other models.
    """
    # Leaves the row's key unlocked: a publishing worker refers to it while it holds the batch this waits for.
    model = session.scalar(select(Model).where(Model.id == model_id).with_for_update(key_share=True))
    if model is None or turn not in (None, model.turn):
        return None
    timestamp = current_time(session)
    released = _release_expired(session, model_id, timestamp, terms.max_attempts)
    if released is None:
        return None
    selection = select_deletions(session, model_id, timestamp, terms.limits)
    batch = None
    if selection.targets:
        batch = _begin(session, model, worker, selection.targets, timestamp + timedelta(seconds=terms.lease_seconds))
    # Only once the new batch holds what the old one lost: callbacks need not say that it was pending in between.
    refresh(session, [target.deletion_id for target in released] + selection.deletion_ids)
    return _make_claim(session, model, batch) if batch else None


def find_running(session: Session, model_id: uuid.UUID) -> Claim | None:
    """Return what the worker of the model's running batch knows, for workers that help it; None if none runs."""
    running = select(Batch).where(Batch.model_id == model_id, Batch.status == BatchStatus.RUNNING)
    batch = session.scalar(running)
    return _make_claim(session, session.get_one(Model, model_id), batch) if batch else None


def renew_lease(
    session: Session,
    batch_id: uuid.UUID,
    lease_seconds: float,
    phase: str,
    percent: float,
    device: str | None = None,
    trace: dict[str, Any] | None = None,
) -> None:
    """Renew the lease and store the progress. Raise LeaseLost if the batch no longer runs."""
    expires = current_time(session) + timedelta(seconds=lease_seconds)
    renewed = session.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == BatchStatus.RUNNING)
        .values(lease_expires_at=expires, phase=phase, percent=percent, device=device, trace=trace)
        .returning(Batch.id)
    )
    if renewed.first() is None:
        raise LeaseLost(f"batch {batch_id} was taken over")


def fail_batch(
    session: Session,
    batch_id: uuid.UUID,
    reason: str,
    *,
    permanent: bool,
    max_attempts: int,
    splits: bool = True,
    rungs: Sequence[Rung] = (),
) -> None:
    """End the batch as failed. Its deletions become pending again with growing delays, or fail for good.

    A batch of several deletions does not fail for good as a whole, since one of them may be the cause: they continue
    in batches of half the size. `splits=False` prevents that, for failures unrelated to the batch's content. `rungs`
    are the rungs that were tried, if known.
    """
    targets, timestamp = batch_targets(session, batch_id), current_time(session)
    limit = half_size(targets) if splits else None
    exhausted = [target for target in targets if permanent or target.attempts >= max_attempts]
    failure = reason
    if exhausted and limit:
        count = f"{len(exhausted)} of its {len(targets)} deletions"
        failure = f"{reason.rstrip('.')}. {count} continue in batches of at most {limit}."
    batch = end_batch(session, batch_id, BatchStatus.FAILED, failure=failure)
    for target in targets:
        target.status, target.failure = DeletionStatus.PENDING, reason
        target.not_before = timestamp + min(timedelta(seconds=2**target.attempts), LONGEST_BACKOFF)
    for target in exhausted:
        fail_or_split(target, reason, limit, timestamp)
    refresh(session, [target.deletion_id for target in targets])
    audit.record_rungs(session, batch.worker, batch_id, rungs)
    audit.record(session, batch.worker, "batch.failed", batch_id, reason=batch.failure, deletions=_ids(targets))


def _release_expired(
    session: Session, model_id: uuid.UUID, timestamp: datetime, max_attempts: int
) -> Sequence[DeletionTarget] | None:
    """End the model's batch if its lease has expired and return its deletions. None while a batch is alive."""
    running = session.scalar(
        select(Batch)
        .where(Batch.model_id == model_id, Batch.status == BatchStatus.RUNNING)
        .with_for_update(key_share=True)
    )
    if running is None:
        return []
    if running.lease_expires_at > timestamp:
        return None
    end_batch(session, running.id, BatchStatus.ABANDONED, failure=WORKER_SILENT)
    targets = batch_targets(session, running.id)
    limit = half_size(targets)
    for target in targets:
        target.status, target.failure = DeletionStatus.PENDING, WORKER_SILENT
        if target.attempts >= max_attempts:
            fail_or_split(target, WORKER_SILENT, limit, timestamp)
    session.flush()
    audit.record(session, "lethe", "batch.abandoned", running.id, worker=running.worker)
    return targets


def _begin(
    session: Session,
    model: Model,
    worker: str,
    targets: Sequence[DeletionTarget],
    lease_expires_at: datetime,
) -> Batch:
    batch = Batch(
        id=uuid.uuid4(),
        model_id=model.id,
        status=BatchStatus.RUNNING,
        worker=worker,
        lease_expires_at=lease_expires_at,
    )
    session.add(batch)
    model.turn += 1
    # Its chains know the people whom the batch forgets.
    abandon_refresh(session, model.id, worker, DELETIONS_FIRST)
    session.flush()
    for target in targets:
        target.status, target.batch_id, target.failure = DeletionStatus.RUNNING, batch.id, None
        target.attempts += 1
    audit.record(session, worker, "batch.claimed", batch.id, model=str(model.id), deletions=_ids(targets))
    return batch


def _make_claim(session: Session, model: Model, batch: Batch) -> Claim:
    version = current_version(session, model.id)
    requests = session.execute(
        select(Deletion.id, Deletion.request_id)
        .join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id)
        .where(DeletionTarget.batch_id == batch.id)
    )
    forgotten = select(Record.record).where(in_batch(model.id, batch.id)).order_by(Record.record)
    return Claim(
        batch_id=batch.id,
        model_id=model.id,
        family=model.family,
        posterior_kind=model.posterior_kind,
        config=model.config,
        policy=required_policy(session, batch.id, model.policy),
        posterior_digest=version.posterior_digest,
        dataset_digest=version.dataset_digest,
        never_seen_digest=model.never_seen_digest,
        forgotten=session.scalars(forgotten).all(),
        record_count=version.record_count,
        records_needed=records_needed(model.family, model.config),
        requests=list(requests),
    )


def in_batch(model_id: uuid.UUID, batch_id: uuid.UUID) -> ColumnElement[bool]:
    """Condition on records of the model: the batch's deletions name the record or its subject."""
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


def end_batch(session: Session, batch_id: uuid.UUID, status: BatchStatus, failure: str | None = None) -> Batch:
    """End a running batch. Raise LeaseLost otherwise: this is the fence, so a batch ends only once."""
    ended: Batch | None = session.scalar(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == BatchStatus.RUNNING)
        .values(status=status, finished_at=CLOCK, failure=failure)
        .returning(Batch)
    )
    if ended is None:
        raise LeaseLost(f"batch {batch_id} was taken over; its result is discarded")
    session.execute(delete(BatchPart).where(BatchPart.batch_id == batch_id))
    return ended


def batch_targets(session: Session, batch_id: uuid.UUID) -> Sequence[DeletionTarget]:
    return session.scalars(
        select(DeletionTarget).where(
            DeletionTarget.batch_id == batch_id, DeletionTarget.status == DeletionStatus.RUNNING
        )
    ).all()


def _ids(targets: Sequence[DeletionTarget]) -> list[str]:
    return [str(target.deletion_id) for target in targets]
