"""Publication of a refresh: one transaction makes its draws current, on the same records, and ends it.

Nobody was deleted, so that no certificate is issued. The entry in the log names both posteriors: a later certificate,
whose version before is the refreshed one, leads back to the certificates before it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.store import audit
from service.store.artifacts.store import adopt
from service.store.batches.fence import is_idle
from service.store.clock import current_time
from service.store.errors import LeaseLost
from service.store.models.registry import DrawCount, count_draws, current_version
from service.store.refreshes.ending import end_refresh
from service.store.refreshes.lifecycle import RefreshClaim, require_held
from service.store.states import RefreshStatus
from service.store.tables import Artifact, Version


@dataclass(frozen=True)
class RefreshResult:
    """Result of a refresh. The file is already stored."""

    posterior_digest: str
    draws: DrawCount
    readiness: dict[str, Any]


def publish_refresh(session: Session, claim: RefreshClaim, result: RefreshResult, retention_seconds: float) -> Version:
    """Make the new version current. Raise LeaseLost if a batch of the model runs, or the version was replaced."""
    # First the model, as in a claim: no batch begins before this transaction ends.
    if not is_idle(session, claim.model_id):
        raise LeaseLost(f"refresh {claim.refresh_id} gave way to a batch of its model")
    refresh, before = require_held(session, claim), current_version(session, claim.model_id)
    if before.id != refresh.version_id:
        raise LeaseLost(f"refresh {claim.refresh_id} continued a version that was replaced")
    refresh.phase, refresh.percent = "published", 100.0
    end_refresh(session, refresh, RefreshStatus.PUBLISHED)
    after = _add_version(session, before, result)
    _schedule_posterior(session, before, after, retention_seconds)
    audit.record(
        session,
        refresh.worker or "lethe",
        "version.refreshed",
        claim.model_id,
        refresh=str(refresh.id),
        version=after.number,
        posterior=after.posterior_digest,
        replaced_posterior=before.posterior_digest,
        dataset=after.dataset_digest,
        draws=after.draws,
        effective_draws=after.effective_draws,
        effective_draws_before=before.effective_draws,
    )
    return after


def _add_version(session: Session, before: Version, result: RefreshResult) -> Version:
    before.superseded_at = current_time(session)
    session.flush()
    after = Version(
        id=uuid.uuid4(),
        model_id=before.model_id,
        number=before.number + 1,
        posterior_digest=result.posterior_digest,
        dataset_digest=before.dataset_digest,
        dataset_root=before.dataset_root,
        record_count=before.record_count,
        readiness=result.readiness,
        created_at=before.superseded_at,
    )
    count_draws(after, result.draws)
    session.add(after)
    adopt(session, after.model_id, after.posterior_digest)
    session.flush()
    return after


def _schedule_posterior(session: Session, before: Version, after: Version, retention_seconds: float) -> None:
    """Schedule the destruction of the posterior before: its weights were computed from forgotten rows."""
    if before.posterior_digest == after.posterior_digest:
        return
    until = after.created_at + timedelta(seconds=retention_seconds)
    session.execute(
        update(Artifact)
        .where(Artifact.model_id == before.model_id, Artifact.digest == before.posterior_digest)
        .values(destroy_at=until)
    )
