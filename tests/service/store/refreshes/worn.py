"""Models whose draws are worn, and claims of their refreshes. Torch-free."""

from __future__ import annotations

import uuid

from service.settings import Settings
from service.store.database import Database
from service.store.models.registry import DrawCount, current_version, record_readiness
from service.store.refreshes.lifecycle import RefreshClaim, RefreshTerms, claim_refresh
from tests import samples

TERMS = RefreshTerms(below=0.8, lease_seconds=30.0, max_crashes=2)
READY = {"ready": True, "levels": ["estimated"]}


def worn_model(settings: Settings, database: Database, effective: float = 100.0) -> uuid.UUID:
    """Register a sample set that a worker has found to be worth so many of its 800 draws."""
    model_id = samples.register_worn_set(settings, database)
    with database.writing() as session:
        version = current_version(session, model_id)
        record_readiness(session, version.id, READY, DrawCount(samples.WORN_DRAWS, effective))
    return model_id


def try_claim(database: Database, model_id: uuid.UUID, terms: RefreshTerms = TERMS) -> RefreshClaim | None:
    with database.writing() as session:
        return claim_refresh(session, model_id, "worker-1", terms)


def claim(database: Database, model_id: uuid.UUID, terms: RefreshTerms = TERMS) -> RefreshClaim:
    claimed = try_claim(database, model_id, terms)
    assert claimed is not None
    return claimed
