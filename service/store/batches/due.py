"""Which models have work for a worker."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from service.store.clock import current_time
from service.store.states import BatchStatus, DeletionStatus
from service.store.tables import Batch, Deletion, DeletionTarget


def models_to_ring(session: Session) -> Sequence[uuid.UUID]:
    """Return models with work and no live batch: due deletions, or a batch whose lease has expired.

    The model with the earliest deadline comes first.
    """
    now = current_time(session)
    live = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING, Batch.lease_expires_at > now)
    due = and_(DeletionTarget.status == DeletionStatus.PENDING, DeletionTarget.not_before <= now)
    return session.scalars(
        select(DeletionTarget.model_id)
        .join(Deletion, Deletion.id == DeletionTarget.deletion_id)
        .where(or_(due, DeletionTarget.status == DeletionStatus.RUNNING), DeletionTarget.model_id.not_in(live))
        .group_by(DeletionTarget.model_id)
        .order_by(func.min(Deletion.due_at), DeletionTarget.model_id)
    ).all()


def has_due_deletions(session: Session, model_id: uuid.UUID, now: datetime) -> bool:
    """Whether the model has a pending deletion that a worker may claim now."""
    waiting = select(DeletionTarget.deletion_id).where(
        DeletionTarget.model_id == model_id,
        DeletionTarget.status == DeletionStatus.PENDING,
        DeletionTarget.not_before <= now,
    )
    return session.scalars(waiting.limit(1)).first() is not None
