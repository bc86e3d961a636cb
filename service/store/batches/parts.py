"""Parts of a batch: members of an ensemble that several workers train side by side.

The worker that holds the batch writes the parts, rings for help and takes parts itself. Any worker takes a free part
under a lease of its own, and stores its result as a file of the batch. A part whose worker falls silent becomes free
again. The parts end with their batch; their files are leftovers, which the batch destroys before it publishes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import timedelta

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from service.store.batches.fence import require_running
from service.store.clock import current_time
from service.store.tables import BatchPart

KIND = "member"
"""Kind of a part's file."""


def add_parts(session: Session, batch_id: uuid.UUID, members: Collection[int]) -> None:
    """Offer these members to all workers. Raise LeaseLost if the batch no longer runs."""
    require_running(session, batch_id)
    session.add_all(BatchPart(batch_id=batch_id, member=member) for member in members)


def take_part(session: Session, batch_id: uuid.UUID, worker: str, lease_seconds: float) -> int | None:
    """Take a part that nobody works on; None if there is none. Raise LeaseLost if the batch no longer runs."""
    require_running(session, batch_id)
    now = current_time(session)
    is_free = or_(BatchPart.lease_expires_at.is_(None), BatchPart.lease_expires_at <= now)
    query = select(BatchPart).where(BatchPart.batch_id == batch_id, BatchPart.digest.is_(None), is_free)
    part = session.scalar(query.order_by(BatchPart.member).limit(1).with_for_update(skip_locked=True))
    if part is None:
        return None
    part.worker, part.lease_expires_at = worker, now + timedelta(seconds=lease_seconds)
    return part.member


def renew_part(session: Session, batch_id: uuid.UUID, member: int, lease_seconds: float) -> None:
    """Renew the lease of a part. Raise LeaseLost if the batch no longer runs."""
    require_running(session, batch_id)
    expires = current_time(session) + timedelta(seconds=lease_seconds)
    session.execute(update(BatchPart).where(*_is(batch_id, member)).values(lease_expires_at=expires))


def finish_part(session: Session, batch_id: uuid.UUID, member: int, digest: str) -> None:
    """Record the file of a part. Raise LeaseLost if the batch no longer runs."""
    require_running(session, batch_id)
    session.execute(update(BatchPart).where(*_is(batch_id, member)).values(digest=digest))


def release_part(session: Session, batch_id: uuid.UUID, member: int) -> None:
    """Let others take a part that its worker could not finish."""
    session.execute(update(BatchPart).where(*_is(batch_id, member)).values(lease_expires_at=None))


def finished_parts(session: Session, batch_id: uuid.UUID) -> Mapping[int, str]:
    """Return the members that others have trained, with the digests of their files."""
    query = select(BatchPart.member, BatchPart.digest).where(BatchPart.batch_id == batch_id)
    return {member: digest for member, digest in session.execute(query) if digest is not None}


def _is(batch_id: uuid.UUID, member: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return BatchPart.batch_id == batch_id, BatchPart.member == member
