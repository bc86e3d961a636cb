"""Which models need a refresh: those whose effective draws are below the floor, or whose refresh is to continue."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from service.store.batches.due import has_due_deletions
from service.store.clock import current_time
from service.store.refreshes.demand import devices_in_demand, is_in_demand
from service.store.states import BatchStatus, RefreshStatus
from service.store.tables import Batch, Model, Refresh, Version

FIRST_RETRY = timedelta(minutes=10)
LATEST_RETRY = timedelta(days=1)
_MOST_DOUBLINGS = 10


def models_to_refresh(session: Session, below: float) -> Sequence[uuid.UUID]:
    """Return models with a refresh to start or to continue, while no deletion is waiting. The most worn comes first.

    `below` is the share of draws below which one is started; 0 for none.
    """
    now, demanded = current_time(session), devices_in_demand(session)
    unfinished = and_(Refresh.model_id == Version.model_id, Refresh.finished_at.is_(None))
    batches = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING)
    candidates = session.execute(
        select(Version, Model.device, Refresh.id)
        .join(Model, Model.id == Version.model_id)
        .join(Refresh, unfinished, isouter=True)
        .where(Version.superseded_at.is_(None), Version.model_id.not_in(batches))
        .where(or_(_is_free(now), and_(Refresh.id.is_(None), is_worn(below))))
        .order_by(Version.effective_draws / Version.draws, Version.model_id)
    ).all()
    return [
        version.model_id
        for version, device, refresh_id in candidates
        if not is_in_demand(device, demanded)
        and (refresh_id is not None or may_start(session, version.id, now))
        and not has_due_deletions(session, version.model_id, now)
    ]


def is_worn(below: float) -> ColumnElement[bool]:
    """Condition on versions: fewer effective draws are left than this share of the draws."""
    return Version.effective_draws < below * Version.draws


def _is_free(now: datetime) -> ColumnElement[bool]:
    """Condition on unfinished refreshes: no worker holds it, or one that has stopped answering."""
    silent = and_(Refresh.status == RefreshStatus.RUNNING, Refresh.lease_expires_at <= now)
    return or_(Refresh.status == RefreshStatus.WAITING, silent)


def may_start(session: Session, version_id: uuid.UUID, now: datetime) -> bool:
    """Whether the last failed refresh of the version is long enough ago. The time doubles with each."""
    failed = select(func.count(), func.max(Refresh.finished_at)).where(
        Refresh.version_id == version_id, Refresh.status == RefreshStatus.FAILED
    )
    count, latest = session.execute(failed).one()
    if not count:
        return True
    return bool(latest + min(FIRST_RETRY * 2 ** min(count - 1, _MOST_DOUBLINGS), LATEST_RETRY) <= now)
