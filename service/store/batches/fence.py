"""The fence: what a worker does outside of its transactions counts only while its batch still runs."""

from __future__ import annotations

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.errors import LeaseLost
from service.store.states import BatchStatus
from service.store.tables import Batch, Model, Refresh


def is_running(session: Session, batch_id: uuid.UUID) -> bool:
    """Whether the batch runs. If so, nobody can take it over before the transaction ends."""
    running = select(Batch.id).where(Batch.id == batch_id, Batch.status == BatchStatus.RUNNING)
    return session.scalar(running.with_for_update(read=True)) is not None


def require_running(session: Session, batch_id: uuid.UUID) -> None:
    """Raise LeaseLost unless the batch runs; otherwise keep it from being taken over until the transaction ends."""
    if not is_running(session, batch_id):
        raise LeaseLost(f"batch {batch_id} was taken over")


def holds_refresh(session: Session, claim_id: uuid.UUID) -> bool:
    """Whether a worker still holds a refresh by this claim. If so, nobody can end it before the transaction ends."""
    held = select(Refresh.id).where(Refresh.claim_id == claim_id)
    return session.scalar(held.with_for_update(read=True)) is not None


def is_idle(session: Session, model_id: uuid.UUID) -> bool:
    """Whether no batch of the model runs. If so, none can begin before the transaction ends."""
    # A claim locks the same row.
    model = session.scalar(select(Model.id).where(Model.id == model_id).with_for_update(key_share=True))
    running = select(Batch.id).where(Batch.model_id == model_id, Batch.status == BatchStatus.RUNNING)
    return model is not None and session.scalar(running) is None
