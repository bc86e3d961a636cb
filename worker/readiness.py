"""Readiness check of a version before the first deletion: which certificates it allows, and what would improve them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import structlog

import ml
from service.store.models.registry import DrawCount, find_model, record_readiness, versions_without_readiness
from service.store.tables import Model, Version
from vocabulary.references import DEFAULT_REFERENCE
from worker.context import WorkerContext
from worker.loading import LoadedModel, draw_count, load_model

log = structlog.get_logger("worker")


def check_current(context: WorkerContext, model_id: uuid.UUID) -> bool:
    """Record the readiness of the current version. Return False if it is recorded already."""
    with context.database.reading() as session:
        versions, model = versions_without_readiness(session, model_id), find_model(session, model_id)
    for version in versions:
        readiness, draws = _check(context, model, version)
        with context.database.writing() as session:
            record_readiness(session, version.id, readiness, draws)
        log.info("version.checked", model_id=str(model_id), number=version.number, ready=readiness["ready"])
    return len(versions) > 0


def _check(context: WorkerContext, model: Model, version: Version) -> tuple[dict[str, Any], DrawCount | None]:
    try:
        digests = version.posterior_digest, version.dataset_digest
        loaded = load_model(context.artifacts, model.id, model.family, model.posterior_kind, model.config, *digests)
        return check_loaded(loaded, model.policy), draw_count(loaded.posterior)
    except ml.ForgettingError as error:
        return _not_ready(str(error)), None
    except Exception as error:
        # Recorded like any result: a version that cannot be checked must not be checked again every second.
        log.exception("version.unreadable", model_id=str(model.id), number=version.number)
        return _not_ready(f"the check failed with an unexpected {type(error).__name__}: see the worker's log"), None


def check_loaded(loaded: LoadedModel, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the readiness of a posterior under the policy of its model."""
    terms = policy["epsilon"], policy.get("reference", DEFAULT_REFERENCE)
    return ml.readiness(loaded.model, loaded.posterior, loaded.rows, *terms).to_dict()


def _not_ready(advice: str) -> dict[str, Any]:
    return {"ready": False, "levels": [], "distance": None, "numbers": {}, "findings": [], "advice": [advice]}
