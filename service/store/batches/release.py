"""A worker that is told to stop gives its batches back: others go on at once, not when its leases run out."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.batches import lifecycle as batches
from service.store.deletions import lifecycle as deletions
from service.store.states import BatchStatus, DeletionStatus
from service.store.tables import Batch

GIVEN_BACK = "its worker was stopped and gave it back"


def give_back(session: Session, worker: str) -> Sequence[uuid.UUID]:
    """End all batches that this worker holds; returns the models to ring for. It is not counted as an attempt.

    A process that computes on behind our back can no longer publish: its batch does not run any more.
    """
    held = (
        select(Batch).where(Batch.worker == worker, Batch.status == BatchStatus.RUNNING).with_for_update(key_share=True)
    )
    return [_give_back(session, batch) for batch in session.scalars(held).all()]


def _give_back(session: Session, batch: Batch) -> uuid.UUID:
    targets = batches.targets_of(session, batch.id)
    batches.end(session, batch.id, BatchStatus.ABANDONED, failure=GIVEN_BACK)
    for target in targets:
        target.status, target.failure = DeletionStatus.PENDING, GIVEN_BACK
        target.attempts -= 1
    given = [target.deletion_id for target in targets]
    deletions.refresh(session, given)
    audit.record(session, batch.worker, "batch.given_back", batch.id, deletions=[str(one) for one in given])
    return batch.model_id
