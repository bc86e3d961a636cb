"""Processing of a batch: claim -> load -> forget -> measure effects -> save -> publish."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import structlog
import torch
from sqlalchemy.exc import OperationalError
from torch import Tensor

import ml
from ml.certify.effects import measure_effects
from ml.certify.samples import get_reading
from service.store.artifacts.leftovers import clear_leftovers
from service.store.artifacts.store import destroy_due, write_ahead
from service.store.batches.destruction import destroy_model
from service.store.batches.due import has_due_deletions
from service.store.batches.lifecycle import Claim, claim_batch, fail_batch
from service.store.batches.publication import BatchResult, publish
from service.store.certificates.statements import Evidence
from service.store.clock import current_time
from service.store.database_errors import is_lock_timeout
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tensor_files import Piece
from service.store.datasets.tree import DatasetTree
from service.store.dialect import wait_for_locks
from service.store.errors import LeaseLost
from vocabulary.bound import Bound, Rung
from vocabulary.effects import Effects
from vocabulary.levels import DESTROYED
from worker.context import WorkerContext
from worker.failures import Failure, classify
from worker.lease import Lease
from worker.loading import LoadedModel, draw_count, load_claimed
from worker.parts import SharedTraining

CLAIM_LOCK_SECONDS = 1.0

log = structlog.get_logger("worker")


def serve_doorbell(context: WorkerContext, model_id: uuid.UUID, turn: int | None = None) -> None:
    """Process one batch of a model. If more is due, ring again, behind the doorbells of other models."""
    if forget_pending(context, model_id, turn):
        with context.database.reading() as session:
            more_due = has_due_deletions(session, model_id, current_time(session))
        if more_due:
            context.doorbell.ring(model_id)


def forget_pending(context: WorkerContext, model_id: uuid.UUID, turn: int | None = None) -> bool:
    """Process the due deletions of a model in one batch. Return False if none is due."""
    claim = _claim(context, model_id, turn)
    if claim is None:
        return False
    _log_each(claim, "deletion.claimed")
    rungs: Sequence[Rung] = ()
    try:
        if claim.ends_model:
            _destroy_model(context, claim)
            return True
        with Lease(context, claim) as lease:
            clear_leftovers(context.database, context.artifacts, claim.batch_id)
            processed = _process(context, claim, lease)
            rungs = processed.evidence.rungs
            # Again: the worker that lost this batch's predecessor may have written in the meantime.
            clear_leftovers(context.database, context.artifacts, claim.batch_id, new_files=processed.digests)
            lease.report("publishing", 1.0)
        _publish(context, claim, processed)
    except LeaseLost:
        log.warning("batch.lost", batch_id=str(claim.batch_id))
    except Exception as error:
        failure = classify(error, claim.batch_id)
        if not failure.permanent:
            log.exception("batch.crashed", batch_id=str(claim.batch_id))
        _fail(context, claim, failure, rungs)
    return True


def _claim(context: WorkerContext, model_id: uuid.UUID, turn: int | None) -> Claim | None:
    """Claim a batch, or none if another transaction holds the model or its batch for long.

    A worker that publishes or was stopped may hold it for half a minute. Other models are served in the meantime; the
    sweep rings for this one again.
    """
    try:
        with context.database.writing() as session:
            wait_for_locks(session, CLAIM_LOCK_SECONDS)
            return claim_batch(session, model_id, context.name, context.terms, turn)
    except OperationalError as error:
        if not is_lock_timeout(error.orig):
            raise
        log.info("batch.not_claimed", model_id=str(model_id))
        return None


def warm_up() -> None:
    """Forget a row of a synthetic model: the first use of LAPACK and the thread pool takes ten times as long."""
    points, _ = ml.synthetic_mixture(2000)
    family = ml.build_family("gaussian-mixture", {"components": 4, "dimensions": 2, "prior_std": 1.0})
    trained = ml.train(family, points, family.initial(points, seed=0))
    ml.forget(family, trained.posterior, points, torch.arange(1), ml.Policy(1.0))


def _process(context: WorkerContext, claim: Claim, lease: Lease) -> BatchResult:
    lease.report("loading", 0.0)
    loaded = load_claimed(context.artifacts, claim)
    lease.device = str(loaded.rows.device)
    policy = ml.Policy(**{**claim.policy, "rungs": tuple(claim.policy["rungs"])})
    forgotten = torch.from_numpy(loaded.dataset.positions(claim.forgotten))
    outcome = ml.forget(
        loaded.model,
        loaded.posterior,
        loaded.rows,
        forgotten,
        policy,
        on_progress=lease.report,
        on_step=lease.record_step,
        train_members=SharedTraining(context, claim, loaded, forgotten),
    )
    lease.report("effects", 1.0)
    evidence = _collect_evidence(loaded, forgotten, outcome)
    lease.report("saving", 1.0)
    retained = loaded.dataset.without(claim.forgotten)
    return BatchResult(
        posterior_digest=_save(context, claim, "posterior", outcome.posterior.to_bytes()),
        dataset_digest=_save(context, claim, "dataset", *retained.pieces()),
        # Both from rows, the second from the saved ones: it cannot prove the absence of a row in that file.
        tree_before=DatasetTree.from_dataset(loaded.dataset),
        tree_after=DatasetTree.from_dataset(retained),
        device=lease.device,
        evidence=evidence,
        draws=draw_count(outcome.posterior),
    )


def _collect_evidence(loaded: LoadedModel, forgotten: Tensor, outcome: ml.Outcome[ml.Posterior]) -> Evidence:
    """Return what the store signs; without bound and effects if the policy was missed, since nothing is published."""
    epsilon, level = outcome.certificate.epsilon, outcome.certificate.level
    rungs = [Rung.model_validate(rung.to_dict()) for rung in outcome.rungs]
    if not outcome.policy_met:
        return Evidence(epsilon, level, rungs, outcome.seconds)
    after = outcome.posterior
    effects = measure_effects(
        loaded.model,
        loaded.posterior,
        after,
        loaded.rows,
        forgotten,
        epsilon,
        loaded.never_seen,
        reading=get_reading(outcome.certificate),
        reference=outcome.certificate.reference_kind,
    )
    worst = effects.membership.worst
    return Evidence(
        epsilon=epsilon,
        level=level,
        rungs=rungs,
        seconds=outcome.seconds,
        bound=Bound.model_validate(outcome.certificate.to_dict()),
        effects=Effects.model_validate(effects.to_dict()),
        # The store knows records by number, not by position.
        worst_record=None if worst is None else int(loaded.dataset.records[int(forgotten[worst.position])]),
    )


def _save(context: WorkerContext, claim: Claim, kind: str, *pieces: Piece) -> str:
    return write_ahead(context.database, context.artifacts, claim.model_id, kind, *pieces, batch_id=claim.batch_id)


def _publish(context: WorkerContext, claim: Claim, processed: BatchResult) -> None:
    with context.database.writing() as session:
        retention = context.settings.superseded_retention_seconds
        publish(session, claim, processed, context.signer, retention)
    _log_each(claim, "deletion.completed", epsilon=processed.evidence.epsilon, certified=processed.evidence.level)
    # Now, not at the next sweep: the superseded data set still holds the erased rows.
    destroy_due(context.database, context.artifacts)


def _destroy_model(context: WorkerContext, claim: Claim) -> None:
    """End a model that the batch leaves no records, or too few. Nothing is computed."""
    with Lease(context, claim) as lease:
        clear_leftovers(context.database, context.artifacts, claim.batch_id)
        lease.report("loading", 0.0)
        dataset = load_dataset(context.artifacts.get(claim.model_id, claim.dataset_digest))
        tree = DatasetTree.from_dataset(dataset)
        lease.report("publishing", 1.0)
    with context.database.writing() as session:
        destroy_model(session, claim, tree, context.signer)
    _log_each(claim, "deletion.completed", certified=DESTROYED)
    destroy_due(context.database, context.artifacts)


def _fail(context: WorkerContext, claim: Claim, failure: Failure, rungs: Sequence[Rung]) -> None:
    try:
        with context.database.writing() as session:
            fail_batch(
                session,
                claim.batch_id,
                failure.reason,
                permanent=failure.permanent,
                max_attempts=context.settings.max_attempts,
                splits=failure.splits,
                rungs=rungs,
            )
    except LeaseLost:
        log.warning("batch.lost", batch_id=str(claim.batch_id))
    else:
        _log_each(claim, "deletion.failed", level="warning", reason=failure.reason, permanent=failure.permanent)


def _log_each(claim: Claim, event: str, level: str = "info", **fields: object) -> None:
    """Log one line for each deletion, with the id of the HTTP request that created it."""
    for deletion_id, request_id in claim.requests:
        getattr(log, level)(
            event, request_id=request_id, deletion_id=str(deletion_id), batch_id=str(claim.batch_id), **fields
        )
