"""When deletions come before refreshes: a refresh starts only if no deletion is due, and gives way to one that waits.

Priority is decided here and not by the broker: a message that a busy worker reads late finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.clock import current_time
from service.store.states import BatchStatus, DeletionStatus, Device
from service.store.tables import Batch, DeletionTarget, Model

AT_ONCE = timedelta()
UNSERVED = timedelta(seconds=2)
"""Time after which a due deletion that nobody has claimed shows that no worker is idle."""


def devices_in_demand(session: Session, waiting: timedelta = AT_ONCE) -> Set[Device]:
    """Return the devices of models with deletions that have been due for so long and that no live batch holds up."""
    now = current_time(session)
    live = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING, Batch.lease_expires_at > now)
    unserved = (
        select(Model.device)
        .distinct()
        .join(DeletionTarget, DeletionTarget.model_id == Model.id)
        .where(DeletionTarget.status == DeletionStatus.PENDING, DeletionTarget.not_before <= now - waiting)
        .where(Model.id.not_in(live))
    )
    return {Device(device) for device in session.scalars(unserved)}


def is_in_demand(device: str, demanded: Set[Device]) -> bool:
    """Whether a worker that refreshes a model of this device could serve those deletions. Any can serve a CPU's."""
    return not demanded.isdisjoint({Device.CPU, Device(device)})
