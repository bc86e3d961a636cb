"""Looking at a version before anybody asks to be forgotten: what can be certified of it, and what would help."""

from __future__ import annotations

import uuid
from typing import Any

import structlog

import ml
from ml.certify.readiness import check_network, check_samples, check_variational
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from service.store.models.registry import find_model, record_readiness, unchecked
from service.store.tables import Model, Version
from worker.context import WorkerContext
from worker.loading import load_model

log = structlog.get_logger("worker")


def check_current(context: WorkerContext, model_id: uuid.UUID) -> bool:
    """Record the readiness of the current version. False if that is known already."""
    with context.database.reading() as session:
        versions, model = unchecked(session, model_id), find_model(session, model_id)
    for version in versions:
        readiness = _readiness(context, model, version)
        with context.database.writing() as session:
            record_readiness(session, version.id, readiness)
        log.info("version.checked", model_id=str(model_id), number=version.number, ready=readiness["ready"])
    return len(versions) > 0


def _readiness(context: WorkerContext, model: Model, version: Version) -> dict[str, Any]:
    try:
        digests = version.posterior_digest, version.dataset_digest
        loaded = load_model(context.artifacts, model.id, model.family, model.posterior_kind, model.config, *digests)
        if isinstance(loaded.posterior, SampleSet):
            return check_samples(loaded.family, loaded.posterior, loaded.rows).to_dict()
        if isinstance(loaded.family, Network):
            return check_network(loaded.family, loaded.posterior, loaded.rows).to_dict()
        return check_variational(loaded.family, loaded.posterior, loaded.rows).to_dict()
    except ml.ForgettingError as error:
        return _not_ready(str(error))
    except Exception as error:
        # Recorded like any finding: a version that cannot be looked at must not be looked at again every second.
        log.exception("version.unreadable", model_id=str(model.id), number=version.number)
        return _not_ready(f"the check ended in an unexpected {type(error).__name__}; the worker's log has it")


def _not_ready(advice: str) -> dict[str, Any]:
    return {"ready": False, "levels": [], "distance": None, "numbers": {}, "findings": [], "advice": [advice]}
