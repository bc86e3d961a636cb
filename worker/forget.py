"""The straight line of a batch: claim -> load -> forget -> audit -> save -> publish."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
import torch
from torch import Tensor

import ml
from ml.certify.effects import effects_of
from ml.ladder.climb import Climbed
from ml.ladder.network import forget_trained_network
from ml.ladder.samples import forget_sample_set
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from service.store.artifacts.store import destroy_due, write_ahead
from service.store.batches import lifecycle as batches
from service.store.batches.due import is_due
from service.store.batches.lifecycle import Claim
from service.store.batches.publication import Processed, publish
from service.store.certificates.statements import Evidence
from service.store.clock import clock
from service.store.datasets.tensor_files import Piece
from service.store.datasets.tree import DatasetTree
from service.store.errors import LeaseLost
from worker.context import WorkerContext
from worker.failures import Failure, classify
from worker.lease import Lease
from worker.loading import LoadedModel, load_model

log = structlog.get_logger("worker")
Outcome = ml.Outcome | Climbed[SampleSet] | Climbed[ml.MeanFieldGaussian]


def serve_doorbell(context: WorkerContext, model_id: uuid.UUID, turn: int | None = None) -> None:
    """Answer a doorbell by one batch. What is left over is rung for behind the doorbells of other models."""
    if forget_pending(context, model_id, turn):
        with context.database.reading() as session:
            left_over = is_due(session, model_id, clock(session))
        if left_over:
            context.doorbell.ring(model_id)


def forget_pending(context: WorkerContext, model_id: uuid.UUID, turn: int | None = None) -> bool:
    """Remove the due deletions of a model in one batch. False if there was nothing to do."""
    with context.database.writing() as session:
        claim = batches.claim(session, model_id, context.name, context.terms, turn)
    if claim is None:
        return False
    _log_each(claim, "deletion.claimed")
    tried: Sequence[Mapping[str, Any]] = ()
    try:
        with Lease(context, claim) as lease:
            processed = _process(context, claim, lease)
            tried = processed.evidence.rungs
            lease.report("publishing", 1.0)
        _publish(context, claim, processed)
    except LeaseLost:
        log.warning("batch.lost", batch_id=str(claim.batch_id))
    except Exception as error:
        failure = classify(error, claim.batch_id)
        if not failure.permanent:
            log.exception("batch.crashed", batch_id=str(claim.batch_id))
        _fail(context, claim, failure, tried)
    return True


def warm_up() -> None:
    """Forget a row of nothing: the first use of LAPACK and the thread pool takes ten times as long as the work."""
    points, _ = ml.synthetic_mixture(2000)
    family = ml.build("gaussian-mixture", {"components": 4, "dimensions": 2, "prior_std": 1.0})
    trained = ml.train(family, points, family.initial(points, seed=0))
    ml.forget(family, trained.posterior, points, torch.arange(1), ml.Policy(1.0))


def _process(context: WorkerContext, claim: Claim, lease: Lease) -> Processed:
    lease.report("loading", 0.0)
    digests = claim.posterior_digest, claim.dataset_digest, claim.never_seen_digest
    kind = claim.posterior_kind
    model = load_model(context.artifacts, claim.model_id, claim.family, kind, claim.config, *digests)
    lease.device = str(model.rows.device)
    policy = ml.Policy(**{**claim.policy, "rungs": tuple(claim.policy["rungs"])})
    forgotten = torch.from_numpy(model.dataset.positions(claim.forgotten))
    outcome = _forget(model, forgotten, policy, lease)
    lease.report("effects", 1.0)
    evidence = Evidence(
        epsilon=outcome.certificate.epsilon,
        level=outcome.certificate.level,
        bound=outcome.certificate.to_dict(),
        rungs=[rung.to_dict() for rung in outcome.rungs],
        effects=_effects(model, forgotten, outcome),
        seconds=outcome.seconds,
    )
    lease.report("saving", 1.0)
    retained = model.dataset.without(claim.forgotten)
    return Processed(
        posterior_digest=_save(context, claim, "posterior", outcome.posterior.to_bytes()),
        dataset_digest=_save(context, claim, "dataset", *retained.pieces()),
        # Both from rows, the second from those that were saved: so it cannot prove gone what is in that file.
        tree_before=DatasetTree.of(model.dataset),
        tree_after=DatasetTree.of(retained),
        device=lease.device,
        evidence=evidence,
    )


def _forget(model: LoadedModel, forgotten: Tensor, policy: ml.Policy, lease: Lease) -> Outcome:
    if isinstance(model.posterior, SampleSet):
        return forget_sample_set(
            model.family, model.posterior, model.rows, forgotten, policy, lease.report, lease.record_step
        )
    if isinstance(model.family, Network):
        return forget_trained_network(
            model.family, model.posterior, model.rows, forgotten, policy, lease.report, lease.record_step
        )
    return ml.forget(
        model.family,
        model.posterior,
        model.rows,
        forgotten,
        policy,
        on_progress=lease.report,
        on_step=lease.record_step,
    )


def _effects(model: LoadedModel, forgotten: Tensor, outcome: Outcome) -> dict[str, Any]:
    """The worst example is named by its record number: its place among the forgotten rows tells the store nothing."""
    if not outcome.policy_met:
        return {}  # it will not be published
    epsilon, after = outcome.certificate.epsilon, outcome.posterior
    found = effects_of(model.family, model.posterior, after, model.rows, forgotten, epsilon, model.never_seen).to_dict()
    worst = found["membership"]["worst"]
    if worst is not None:
        worst["record"] = int(model.dataset.records[int(forgotten[worst.pop("position")])])
    return found


def _save(context: WorkerContext, claim: Claim, kind: str, *pieces: Piece) -> str:
    return write_ahead(context.database, context.artifacts, claim.model_id, kind, *pieces)


def _publish(context: WorkerContext, claim: Claim, processed: Processed) -> None:
    with context.database.writing() as session:
        retention = context.settings.superseded_retention_seconds
        publish(session, claim, processed, context.signer, retention)
    _log_each(claim, "deletion.completed", epsilon=processed.evidence.epsilon, certified=processed.evidence.level)
    # At once rather than at the next sweep: the erased rows are still in the superseded data set.
    destroy_due(context.database, context.artifacts)


def _fail(context: WorkerContext, claim: Claim, failure: Failure, tried: Sequence[Mapping[str, Any]]) -> None:
    try:
        with context.database.writing() as session:
            batches.fail(
                session,
                claim.batch_id,
                failure.reason,
                permanent=failure.permanent,
                max_attempts=context.settings.max_attempts,
                splits=failure.splits,
                rungs=tried,
            )
    except LeaseLost:
        log.warning("batch.lost", batch_id=str(claim.batch_id))
    else:
        _log_each(claim, "deletion.failed", reason=failure.reason, permanent=failure.permanent)


def _log_each(claim: Claim, event: str, **fields: object) -> None:
    """One line for each deletion, under the id of the HTTP request that brought it."""
    for deletion_id, request_id in claim.requests:
        log.info(event, request_id=request_id, deletion_id=str(deletion_id), batch_id=str(claim.batch_id), **fields)
