"""Batches: claim, keep, fail. A worker's transactions are short and none is open while it computes.

A batch is claimed and ended by conditional changes, so a duplicate doorbell does nothing and a worker that lost its
lease cannot publish (publishing.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.batches.selection import UNLIMITED, Limits, choose
from service.store.batches.splitting import give_up, half
from service.store.clock import clock
from service.store.deletions import lifecycle as deletions
from service.store.errors import LeaseLost
from service.store.models import policies
from service.store.models.registry import current_version
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
    limits: Limits = UNLIMITED


def claim(
    session: Session, model_id: uuid.UUID, worker: str, terms: ClaimTerms, turn: int | None = None
) -> Claim | None:
    """Take the due deletions of a model, or None if there is none or another worker is at it.

    With `turn` given, also None if a batch has begun since: that one was the answer to the doorbell. Otherwise the
    many doorbells of a busy model would each become a batch, before those of other models are heard.
    """
    # Not its key: whoever publishes refers to it while holding the batch, for which we are about to wait.
    model = session.scalar(select(Model).where(Model.id == model_id).with_for_update(key_share=True))
    if model is None or turn not in (None, model.turn):
        return None
    moment = clock(session)
    freed = _freed(session, model_id, moment, terms.max_attempts)
    if freed is None:
        return None
    chosen = choose(session, model_id, moment, terms.window_seconds, terms.limits)
    batch = _begin(session, model, worker, chosen.taken, moment, terms.lease_seconds) if chosen.taken else None
    # Not before the new batch holds what the old one lost: nobody need be told that it was pending in between.
    deletions.refresh(session, [target.deletion_id for target in freed] + chosen.deletion_ids)
    return _claim_of(session, model, batch) if batch else None


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
    expires = clock(session) + timedelta(seconds=lease_seconds)
    renewed = session.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == BatchStatus.RUNNING)
        .values(lease_expires_at=expires, phase=phase, percent=percent, device=device, trace=trace)
        .returning(Batch.id)
    )
    if renewed.first() is None:
        raise LeaseLost(f"batch {batch_id} was taken over")


def fail(
    session: Session,
    batch_id: uuid.UUID,
    reason: str,
    *,
    permanent: bool,
    max_attempts: int,
    splits: bool = True,
    rungs: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Give the batch's deletions back for another attempt, later each time; or give up and say why.

    Giving up on several at once would let one hold up the others, so they go on in batches of half the size. Without
    `splits` they do not: what failed has nothing to do with what is in the batch. `rungs` is what was tried, if known.
    """
    targets, moment = targets_of(session, batch_id), clock(session)
    limit = half(targets) if splits else None
    given_up = [target for target in targets if permanent or target.attempts >= max_attempts]
    released = len(given_up) if limit else 0
    told = f"{reason.rstrip('.')}. {released} of its {len(targets)} deletions go on in batches of at most {limit}."
    batch = end(session, batch_id, BatchStatus.FAILED, failure=told if released else reason)
    for target in targets:
        target.status, target.failure = DeletionStatus.PENDING, reason
        target.not_before = moment + min(timedelta(seconds=2**target.attempts), LONGEST_BACKOFF)
    for target in given_up:
        give_up(target, reason, limit, moment)
    deletions.refresh(session, [target.deletion_id for target in targets])
    audit.record_rungs(session, batch.worker, batch_id, rungs)
    audit.record(session, batch.worker, "batch.failed", batch_id, reason=batch.failure, deletions=_ids(targets))


def _freed(
    session: Session, model_id: uuid.UUID, moment: datetime, max_attempts: int
) -> Sequence[DeletionTarget] | None:
    """The deletions of a batch whose lease ran out, which ends here. None when a batch is alive."""
    running = session.scalar(
        select(Batch)
        .where(Batch.model_id == model_id, Batch.status == BatchStatus.RUNNING)
        .with_for_update(key_share=True)
    )
    if running is None:
        return []
    if running.lease_expires_at > moment:
        return None
    end(session, running.id, BatchStatus.ABANDONED, failure=WORKER_SILENT)
    targets = targets_of(session, running.id)
    limit = half(targets)
    for target in targets:
        target.status, target.failure = DeletionStatus.PENDING, WORKER_SILENT
        if target.attempts >= max_attempts:
            give_up(target, WORKER_SILENT, limit, moment)
    session.flush()
    audit.record(session, "lethe", "batch.abandoned", running.id, worker=running.worker)
    return targets


def _begin(
    session: Session,
    model: Model,
    worker: str,
    targets: Sequence[DeletionTarget],
    moment: datetime,
    lease_seconds: float,
) -> Batch:
    batch = Batch(
        id=uuid.uuid4(),
        model_id=model.id,
        status=BatchStatus.RUNNING,
        worker=worker,
        lease_expires_at=moment + timedelta(seconds=lease_seconds),
    )
    session.add(batch)
    model.turn += 1
    session.flush()
    for target in targets:
        target.status, target.batch_id, target.failure = DeletionStatus.RUNNING, batch.id, None
        target.attempts += 1
    audit.record(session, worker, "batch.claimed", batch.id, model=str(model.id), deletions=_ids(targets))
    return batch


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
