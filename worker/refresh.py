"""Processing of a refresh: claim -> load -> continue the chains, with checkpoints -> check -> save -> publish."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import structlog
import torch
from celery.exceptions import SoftTimeLimitExceeded

import ml
from ml.inference.refreshing import RefreshState, begin_refresh, continue_refresh
from ml.posteriors.sample_set import SampleSet
from service.store.artifacts.store import destroy_due
from service.store.errors import LeaseLost
from service.store.models.registry import DrawCount
from service.store.refreshes.files import save_refresh_file
from service.store.refreshes.lifecycle import RefreshClaim, claim_refresh, fail_refresh, release_refresh
from service.store.refreshes.publication import RefreshResult, publish_refresh
from worker.context import WorkerContext
from worker.failures import classify
from worker.loading import LoadedModel, load_model
from worker.readiness import check_loaded
from worker.refresh_lease import GaveWay, RefreshLease

CHECKPOINT_SECONDS = 10.0
_SEEDS = 1 << 63

log = structlog.get_logger("worker")


class ChecksFailed(ml.ForgettingError):
    """The new draws fail checks that those before had passed."""


def refresh_worn(context: WorkerContext, model_id: uuid.UUID) -> bool:
    """Refresh a model whose draws are worn, or continue to. Return False if nothing is to be done, or deletions are."""
    with context.database.writing() as session:
        claim = claim_refresh(session, model_id, context.name, context.refresh_terms)
    if claim is None:
        return False
    log.info("refresh.claimed", **_names(claim))
    try:
        with RefreshLease(context, claim) as lease:
            result = _process(context, claim, lease)
        with context.database.writing() as session:
            publish_refresh(session, claim, result, context.settings.superseded_retention_seconds)
        log.info("refresh.published", draws=result.draws.total, **_names(claim))
    except (GaveWay, LeaseLost):
        log.info("refresh.given_back", **_names(claim))
    except SoftTimeLimitExceeded:
        _give_back(context, claim)
    except Exception as error:
        _fail(context, claim, error)
    # Now, not at the next sweep: what is superseded or abandoned knows forgotten people.
    destroy_due(context.database, context.artifacts)
    return True


def _process(context: WorkerContext, claim: RefreshClaim, lease: RefreshLease) -> RefreshResult:
    digests = claim.posterior_digest, claim.dataset_digest
    loaded = load_model(context.artifacts, claim.model_id, claim.family, claim.posterior_kind, claim.config, *digests)
    refreshed = _sample(context, claim, loaded, lease)
    lease.report("checking", 1.0)
    readiness = _check(claim, loaded, refreshed)
    lease.report("saving", 1.0)
    draws = len(refreshed.samples)
    digest = save_refresh_file(context.database, context.artifacts, claim, "posterior", refreshed.to_bytes())
    return RefreshResult(digest, DrawCount(draws, float(draws)), readiness)


def _sample(context: WorkerContext, claim: RefreshClaim, loaded: LoadedModel, lease: RefreshLease) -> SampleSet:
    """Continue the chains from the checkpoint or from stored draws, and store a checkpoint every few seconds."""
    posterior = loaded.posterior
    if not isinstance(posterior, SampleSet):
        raise ml.InvalidInput("only sample sets have chains that can be continued")
    generator = torch.Generator().manual_seed(_seed(claim))
    start = state = _resume(context, claim, loaded) or begin_refresh(posterior, generator)
    saved_at = time.monotonic()
    for state in continue_refresh(loaded.model, posterior, loaded.rows, start, generator):
        lease.report("sampling" if state.draws else "burn-in", state.fraction)
        if time.monotonic() - saved_at >= CHECKPOINT_SECONDS or state.done:
            save_refresh_file(context.database, context.artifacts, claim, "checkpoint", state.to_bytes())
            saved_at = time.monotonic()
    return state.sample_set


def _seed(claim: RefreshClaim) -> int:
    """Return another seed for each claim: what failed by chance, or was interrupted, does not repeat itself."""
    return claim.claim_id.int % _SEEDS


def _resume(context: WorkerContext, claim: RefreshClaim, loaded: LoadedModel) -> RefreshState | None:
    if claim.checkpoint_digest is None:
        return None
    content = context.artifacts.get(claim.model_id, claim.checkpoint_digest)
    return RefreshState.from_bytes(content).to(loaded.rows.device)


def _check(claim: RefreshClaim, loaded: LoadedModel, refreshed: SampleSet) -> dict[str, Any]:
    """Return the readiness of the new draws. Raises ChecksFailed if it allows less than that of the draws before."""
    readiness = check_loaded(replace(loaded, posterior=refreshed), claim.policy)
    before: dict[str, Any] = claim.readiness or check_loaded(loaded, claim.policy)
    if not set(before["levels"]) <= set(readiness["levels"]):
        raise ChecksFailed(
            f"the draws before passed their checks, but the new ones do not, so they were discarded: "
            f"{'; '.join(readiness['advice'])}"
        )
    return readiness


def _give_back(context: WorkerContext, claim: RefreshClaim) -> None:
    """Release a refresh that ran for as long as a task may; another task continues from its checkpoint."""
    try:
        with context.database.writing() as session:
            release_refresh(session, claim)
    except LeaseLost:
        pass
    log.info("refresh.given_back", **_names(claim))


def _fail(context: WorkerContext, claim: RefreshClaim, error: Exception) -> None:
    failure = classify(error, claim.refresh_id)
    if not failure.permanent:
        log.exception("refresh.crashed", **_names(claim))
    try:
        with context.database.writing() as session:
            fail_refresh(session, claim, failure.reason)
    except LeaseLost:
        log.info("refresh.given_back", **_names(claim))
    else:
        log.warning("refresh.failed", reason=failure.reason, **_names(claim))


def _names(claim: RefreshClaim) -> dict[str, str]:
    return {"refresh_id": str(claim.refresh_id), "model_id": str(claim.model_id)}
