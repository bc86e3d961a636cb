"""Release of a stopping worker's batches, so that others continue at once and not when the leases expire."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.batches.lifecycle import batch_targets, end_batch
from service.store.deletions.lifecycle import refresh
from service.store.states import BatchStatus, DeletionStatus
from service.store.tables import Batch, BatchPart

WORKER_STOPPED = "its worker was stopped and released the batch"


def release_batches(session: Session, worker: str) -> Sequence[uuid.UUID]:
    """End all batches of this worker, free its parts of others, and return the models to ring for.

    No attempt is counted. A process that still computes can no longer publish, because its batch has ended.
    """
    session.execute(update(BatchPart).where(BatchPart.worker == worker).values(lease_expires_at=None))
    query = (
        select(Batch).where(Batch.worker == worker, Batch.status == BatchStatus.RUNNING).with_for_update(key_share=True)
    )
    return [_release(session, batch) for batch in session.scalars(query).all()]


def _release(session: Session, batch: Batch) -> uuid.UUID:
    targets = batch_targets(session, batch.id)
    end_batch(session, batch.id, BatchStatus.ABANDONED, failure=WORKER_STOPPED)
    for target in targets:
        target.status, target.failure = DeletionStatus.PENDING, WORKER_STOPPED
        target.attempts -= 1
    deletion_ids = [target.deletion_id for target in targets]
    refresh(session, deletion_ids)
    released = [str(deletion_id) for deletion_id in deletion_ids]
    audit.record(session, batch.worker, "batch.given_back", batch.id, deletions=released)
    return batch.model_id
