"""When deletions come before refreshes: a refresh starts only if no deletion is due, and gives way to one that waits.

Priority is decided here and not by the broker: a message that a busy worker reads late finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime, timedelta

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from service.store.clock import current_time
from service.store.states import BatchStatus, DeletionStatus, Device
from service.store.tables import Batch, BatchPart, DeletionTarget, Model

AT_ONCE = timedelta()
UNSERVED = timedelta(seconds=2)
"""Time after which a due deletion that nobody has claimed shows that no worker is idle."""


def devices_in_demand(session: Session, waiting: timedelta = AT_ONCE) -> Set[Device]:
    """Return the devices of models with deletions that have been due for so long and that no live batch holds up.

    Also of batches that began so long ago and of which a part is free for any worker.
    """
    now = current_time(session)
    live = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING, Batch.lease_expires_at > now)
    unserved = (
        select(Model.device)
        .distinct()
        .join(DeletionTarget, DeletionTarget.model_id == Model.id)
        .where(DeletionTarget.status == DeletionStatus.PENDING, DeletionTarget.not_before <= now - waiting)
        .where(Model.id.not_in(live))
    )
    return {Device(device) for query in (unserved, _free_parts(now, waiting)) for device in session.scalars(query)}


def _free_parts(now: datetime, waiting: timedelta) -> Select[str]:
    is_free = or_(BatchPart.lease_expires_at.is_(None), BatchPart.lease_expires_at <= now)
    return (
        select(Model.device)
        .distinct()
        .join(Batch, Batch.model_id == Model.id)
        .join(BatchPart, BatchPart.batch_id == Batch.id)
        .where(Batch.status == BatchStatus.RUNNING, Batch.started_at <= now - waiting)
        .where(BatchPart.digest.is_(None), is_free)
    )


def is_in_demand(device: str, demanded: Set[Device]) -> bool:
    """Whether a worker that refreshes a model of this device could serve those deletions. Any can serve a CPU's."""
    return not demanded.isdisjoint({Device.CPU, Device(device)})
