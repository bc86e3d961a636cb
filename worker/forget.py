"""The straight line of a batch: claim -> load -> forget -> save -> publish."""

from __future__ import annotations

import os
import uuid

import structlog
import torch

import ml
from service.store import batches
from service.store.artifacts import destroy_due, write_ahead
from service.store.batches import Claim
from service.store.certificates import Evidence
from service.store.datasets import Dataset, stored_dataset
from service.store.errors import LeaseLost, PolicyMissed
from service.store.publishing import Processed, publish
from worker.lease import Lease
from worker.workshop import Workshop

log = structlog.get_logger("worker")

SMALL_DATASET = 1_000_000
"""Numbers in a data set below which a second thread costs more than it saves, and on a busy machine fifty times more:
each operation then waits until the other thread is let onto a core."""


def forget_pending(workshop: Workshop, model_id: uuid.UUID) -> bool:
    """Remove all due deletions of a model in one batch. False if there was nothing to do."""
    with workshop.database.writing() as session:
        claim = batches.claim(session, model_id, workshop.name, workshop.terms)
    if claim is None:
        return False
    _log_each(claim, "deletion.claimed")
    try:
        with Lease(workshop, claim) as lease:
            processed = _process(workshop, claim, lease)
        _publish(workshop, claim, processed)
    except LeaseLost:
        log.warning("batch.lost", batch_id=str(claim.batch_id))
    except (ml.ForgettingError, PolicyMissed) as error:
        _fail(workshop, claim, str(error), permanent=True)
    except Exception as error:
        log.exception("batch.crashed", batch_id=str(claim.batch_id))
        reason = f"unexpected {type(error).__name__}; the worker's log has it under batch {claim.batch_id}"
        _fail(workshop, claim, reason, permanent=False)
    return True


def warm_up() -> None:
    """Forget a row of nothing: the first use of LAPACK and the thread pool takes ten times as long as the work."""
    points, _ = ml.synthetic_mixture(2000)
    family = ml.build("gaussian-mixture", {"components": 4, "dimensions": 2, "prior_std": 1.0})
    trained = ml.train(family, points, family.initial(points, seed=0))
    ml.forget(family, trained.posterior, points, torch.arange(1), ml.Policy(1.0))


def _process(workshop: Workshop, claim: Claim, lease: Lease) -> Processed:
    lease.report("loading", 0.0)
    dataset = stored_dataset(workshop.artifacts.get(claim.model_id, claim.dataset_digest))
    posterior = workshop.artifacts.get(claim.model_id, claim.posterior_digest)
    outcome = _forget(claim, dataset, posterior, lease)
    lease.report("saving", 1.0)
    retained = dataset.without(claim.forgotten)
    return Processed(
        posterior_digest=_save(workshop, claim, "posterior", outcome.posterior.to_bytes()),
        dataset_digest=_save(workshop, claim, "dataset", retained.to_bytes()),
        record_count=len(retained.records),
        evidence=_evidence(outcome),
    )


def _forget(claim: Claim, dataset: Dataset, posterior: bytes, lease: Lease) -> ml.Outcome:
    device = ml.pick_device()
    numbers = sum(array.size for array in dataset.arrays.values())
    torch.set_num_threads(1 if numbers < SMALL_DATASET else os.cpu_count() or 1)
    return ml.forget(
        ml.build(claim.family, claim.config),
        ml.MeanFieldGaussian.from_bytes(posterior).to(device),
        torch.from_numpy(dataset.arrays["x"]).to(device),
        torch.from_numpy(dataset.positions(claim.forgotten)),
        ml.Policy(**{**claim.policy, "rungs": tuple(claim.policy["rungs"])}),
        on_progress=lease.report,
    )


def _evidence(outcome: ml.Outcome) -> Evidence:
    return Evidence(
        epsilon=outcome.certificate.epsilon,
        level=outcome.certificate.level,
        bound=outcome.certificate.to_dict(),
        rungs=[rung.to_dict() for rung in outcome.rungs],
        seconds=outcome.seconds,
    )


def _save(workshop: Workshop, claim: Claim, kind: str, content: bytes) -> str:
    return write_ahead(workshop.database, workshop.artifacts, claim.model_id, kind, content)


def _publish(workshop: Workshop, claim: Claim, processed: Processed) -> None:
    with workshop.database.writing() as session:
        retention = workshop.settings.superseded_retention_seconds
        publish(session, claim, processed, workshop.signer, retention)
    _log_each(claim, "deletion.completed", epsilon=processed.evidence.epsilon, level=processed.evidence.level)
    # At once rather than at the next sweep: the erased rows are still in the superseded data set.
    destroy_due(workshop.database, workshop.artifacts)


def _fail(workshop: Workshop, claim: Claim, reason: str, *, permanent: bool) -> None:
    try:
        with workshop.database.writing() as session:
            batches.fail(
                session, claim.batch_id, reason, permanent=permanent, max_attempts=workshop.settings.max_attempts
            )
    except LeaseLost:
        log.warning("batch.lost", batch_id=str(claim.batch_id))
    else:
        _log_each(claim, "deletion.failed", reason=reason, permanent=permanent)


def _log_each(claim: Claim, event: str, **fields: object) -> None:
    """One line for each deletion, under the id of the HTTP request that brought it."""
    for deletion_id, request_id in claim.requests:
        log.info(event, request_id=request_id, deletion_id=str(deletion_id), batch_id=str(claim.batch_id), **fields)
