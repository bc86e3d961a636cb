"""End of a refresh, for whatever reason: its files are destroyed with it."""

from __future__ import annotations

import uuid

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.dialect import CLOCK
from service.store.states import RefreshStatus
from service.store.tables import Artifact, Refresh


def find_unfinished(session: Session, model_id: uuid.UUID) -> Refresh | None:
    """Return and lock the model's refresh that waits or runs."""
    unfinished = select(Refresh).where(Refresh.model_id == model_id, Refresh.finished_at.is_(None))
    return session.scalar(unfinished.with_for_update().execution_options(populate_existing=True))


def end_refresh(session: Session, refresh: Refresh, status: RefreshStatus, failure: str | None = None) -> None:
    """End a refresh that the caller has locked, and make its files due for destruction; a published one's is kept."""
    refresh.status, refresh.failure, refresh.finished_at = status, failure, CLOCK
    refresh.claim_id = refresh.lease_expires_at = None
    digests = [refresh.checkpoint_digest]
    if status != RefreshStatus.PUBLISHED:
        digests.append(refresh.posterior_digest)
    session.flush()
    for digest in filter(None, digests):
        schedule_destruction(session, refresh.model_id, digest)


def abandon_refresh(session: Session, model_id: uuid.UUID, actor: str, reason: str) -> None:
    """End the model's unfinished refresh, if there is one: the version that it continues is about to be replaced."""
    refresh = find_unfinished(session, model_id)
    if refresh is not None:
        end_refresh(session, refresh, RefreshStatus.ABANDONED, reason)
        audit.record(session, actor, "refresh.abandoned", refresh.id, model=str(model_id), reason=reason)


def schedule_destruction(session: Session, model_id: uuid.UUID, digest: str) -> None:
    """Make a file due at once."""
    session.execute(
        update(Artifact).where(Artifact.model_id == model_id, Artifact.digest == digest).values(destroy_at=CLOCK)
    )
