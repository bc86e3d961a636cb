"""Life of a refresh: requested or due, claimed, kept alive, released, failed. Published in publication.py.

A refresh continues the chains of a model's current version on the same records, until their draws have even weights
again. It never stands in the way of a deletion: it starts only while none is due, a claim of the model's deletions ends
it (batches/lifecycle.py), and its worker releases it for those of other models. Its checkpoint survives a release and
the death of its worker, and nothing else: the states of the chains know the people who are forgotten next.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.batches.due import has_due_deletions
from service.store.batches.fence import is_idle
from service.store.clock import current_time
from service.store.errors import LeaseLost
from service.store.models.registry import current_version
from service.store.refreshes.demand import UNSERVED, devices_in_demand, is_in_demand
from service.store.refreshes.due import may_start
from service.store.refreshes.ending import abandon_refresh, end_refresh, find_unfinished
from service.store.states import RefreshStatus
from service.store.tables import Model, Refresh, Version

WORKERS_SILENT = "{count} workers stopped answering while they refreshed it: see their logs, and give them more memory"


@dataclass(frozen=True)
class RefreshClaim:
    """What a worker needs for a refresh: identifiers and digests, no open transaction."""

    refresh_id: uuid.UUID
    claim_id: uuid.UUID
    worker: str
    model_id: uuid.UUID
    version_id: uuid.UUID
    device: str
    family: str
    posterior_kind: str
    config: dict[str, Any]
    policy: dict[str, Any]
    posterior_digest: str
    dataset_digest: str
    readiness: dict[str, Any] | None
    """Readiness of the version whose chains continue."""
    checkpoint_digest: str | None
    """Checkpoint to continue from. None to begin."""


@dataclass(frozen=True)
class RefreshTerms:
    """When a refresh starts, and for how long a worker may claim it."""

    below: float
    """Share of draws below which one starts without being requested."""
    lease_seconds: float
    max_crashes: int


def claim_refresh(session: Session, model_id: uuid.UUID, worker: str, terms: RefreshTerms) -> RefreshClaim | None:
    """Claim the model's refresh, or start one if its draws are worn. None if there is none, or deletions are due."""
    if not is_idle(session, model_id):
        return None
    model, now = session.get_one(Model, model_id), current_time(session)
    if model.destroyed_at is not None or _has_precedence(session, model, now):
        return None
    version = current_version(session, model_id)
    refresh = find_unfinished(session, model_id)
    if refresh is None:
        refresh = _start(session, version, terms.below, now)
    elif refresh.status == RefreshStatus.RUNNING and not _is_silent(session, refresh, terms.max_crashes, now):
        return None
    if refresh is None or refresh.finished_at is not None:
        return None
    if refresh.checkpoint_digest is None:
        refresh.version_id = version.id  # it may have been requested while a batch ran
    claim_id = uuid.uuid4()
    refresh.status, refresh.claim_id, refresh.worker = RefreshStatus.RUNNING, claim_id, worker
    refresh.lease_expires_at = now + timedelta(seconds=terms.lease_seconds)
    session.flush()
    audit.record(session, worker, "refresh.claimed", refresh.id, model=str(model_id), version=version.number)
    return _make_claim(claim_id, worker, model, version, refresh)


def renew_refresh(session: Session, claim: RefreshClaim, lease_seconds: float, phase: str, percent: float) -> None:
    """Renew the lease and store the progress. Raise LeaseLost if the worker no longer holds it."""
    refresh = require_held(session, claim)
    refresh.lease_expires_at = current_time(session) + timedelta(seconds=lease_seconds)
    refresh.phase, refresh.percent = phase, percent


def require_held(session: Session, claim: RefreshClaim) -> Refresh:
    """Return and lock the refresh. Raise LeaseLost unless the worker still holds it: this is the fence."""
    held = select(Refresh).where(Refresh.id == claim.refresh_id, Refresh.claim_id == claim.claim_id)
    refresh = session.scalar(held.with_for_update())
    if refresh is None:
        raise LeaseLost(f"refresh {claim.refresh_id} was taken over or ended")
    return refresh


def has_own_deletions(session: Session, claim: RefreshClaim) -> bool:
    """Whether deletions of the model are due: the refresh has to end, since its version is about to be replaced."""
    return has_due_deletions(session, claim.model_id, current_time(session))


def has_unserved_deletions(session: Session, claim: RefreshClaim) -> bool:
    """Whether deletions of other models wait although this worker could serve them: the refresh has to be released."""
    return is_in_demand(claim.device, devices_in_demand(session, waiting=UNSERVED))


def release_refresh(session: Session, claim: RefreshClaim) -> None:
    """Let another worker, or this one later, continue from the checkpoint."""
    _release(session, require_held(session, claim))


def release_refreshes(session: Session, worker: str) -> Sequence[uuid.UUID]:
    """Release all refreshes of a worker that stops, and return their models."""
    held = select(Refresh).where(Refresh.worker == worker, Refresh.status == RefreshStatus.RUNNING).with_for_update()
    return [_release(session, refresh) for refresh in session.scalars(held).all()]


def abandon_held(session: Session, claim: RefreshClaim, reason: str) -> None:
    """End the refresh in favour of the model's deletions, its files with it."""
    require_held(session, claim)
    abandon_refresh(session, claim.model_id, claim.worker, reason)


def fail_refresh(session: Session, claim: RefreshClaim, reason: str) -> None:
    """End the refresh as failed. The next one of the version starts after a delay, which doubles each time."""
    _fail(session, require_held(session, claim), reason)


def _has_precedence(session: Session, model: Model, now: datetime) -> bool:
    demanded = devices_in_demand(session)
    return is_in_demand(model.device, demanded) or has_due_deletions(session, model.id, now)


def _start(session: Session, version: Version, below: float, now: datetime) -> Refresh | None:
    if version.draws is None or version.effective_draws is None or version.effective_draws >= below * version.draws:
        return None
    return add_refresh(session, version) if may_start(session, version.id, now) else None


def add_refresh(session: Session, version: Version) -> Refresh:
    refresh = Refresh(id=uuid.uuid4(), model_id=version.model_id, version_id=version.id, status=RefreshStatus.WAITING)
    session.add(refresh)
    session.flush()
    return refresh


def _is_silent(session: Session, refresh: Refresh, max_crashes: int, now: datetime) -> bool:
    """Whether the worker lost its lease. A refresh that lost too many workers fails."""
    if refresh.lease_expires_at is None or refresh.lease_expires_at > now:
        return False
    refresh.crashes += 1
    if refresh.crashes >= max_crashes:
        _fail(session, refresh, WORKERS_SILENT.format(count=refresh.crashes))
    return True


def _release(session: Session, refresh: Refresh) -> uuid.UUID:
    refresh.status, refresh.claim_id, refresh.lease_expires_at = RefreshStatus.WAITING, None, None
    audit.record(session, refresh.worker or "lethe", "refresh.given_back", refresh.id, model=str(refresh.model_id))
    return refresh.model_id


def _fail(session: Session, refresh: Refresh, reason: str) -> None:
    end_refresh(session, refresh, RefreshStatus.FAILED, reason)
    actor = refresh.worker or "lethe"
    audit.record(session, actor, "refresh.failed", refresh.id, model=str(refresh.model_id), reason=reason)


def _make_claim(claim_id: uuid.UUID, worker: str, model: Model, version: Version, refresh: Refresh) -> RefreshClaim:
    return RefreshClaim(
        refresh_id=refresh.id,
        claim_id=claim_id,
        worker=worker,
        model_id=model.id,
        version_id=version.id,
        device=model.device,
        family=model.family,
        posterior_kind=model.posterior_kind,
        config=model.config,
        policy=model.policy,
        posterior_digest=version.posterior_digest,
        dataset_digest=version.dataset_digest,
        readiness=version.readiness,
        checkpoint_digest=refresh.checkpoint_digest,
    )
