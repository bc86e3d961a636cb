"""Sample people and a sample model that many tests use. Torch-free."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save
from sqlalchemy.orm import Session

from service.settings import Settings
from service.store.access.identities import Identity, IdentityHasher
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView, NamedRecord
from service.store.models.registry import Registration, register
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from vocabulary import rungs

CONFIG = {"components": 1, "dimensions": 2, "prior_std": 1.0}
PEOPLE, ROWS_EACH = 10, 4
WORN_DRAWS = 800
RUNGS = list(rungs.RUNGS)
REFERENCE = {"reference": "posterior"}


def person(number: int) -> dict[str, str]:
    return {"identity_type": "email", "identity_value": f"person-{number}@example.org"}


def points() -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(7).normal(size=(PEOPLE * ROWS_EACH, 2))


def posterior(data: np.ndarray[Any, np.dtype[np.float64]]) -> bytes:
    """Return the exact optimum: with one component the mixture is conjugate."""
    precision = len(data) + 1.0
    std = np.full((1, 2), precision**-0.5)
    return save({"mean": data.sum(0, keepdims=True) / precision, "std": std})


def parts(**changes: bytes) -> dict[str, bytes]:
    """Return the four parts of a valid registration, with changes."""
    data = points()
    manifest = {"name": "sample", "family": "gaussian-mixture", "config": CONFIG, "policy": {"epsilon": 1e-6}}
    subjects = [person(row // ROWS_EACH) for row in range(len(data))]
    valid = {
        "manifest": json.dumps(manifest).encode(),
        "posterior": posterior(data),
        "records": save({"x": data}),
        "subjects": json.dumps(subjects).encode(),
    }
    return {**valid, **changes}


def hasher(settings: Settings) -> IdentityHasher:
    return IdentityHasher(*settings.identity_keys())


def lookup(settings: Settings, number: int) -> bytes:
    return hasher(settings).lookup(Identity("email", f"person-{number}@example.org"))


def register_sample(
    settings: Settings, database: Database, epsilon: float = 1e-6, never_seen: bytes | None = None, **policy: Any
) -> uuid.UUID:
    data = points()
    registration = Registration(
        name="sample",
        family="gaussian-mixture",
        config=dict(CONFIG),
        policy={"epsilon": epsilon, "level": "proved", "rungs": RUNGS, "seconds": None, **REFERENCE, **policy},
        posterior=posterior(data),
        records=save({"x": data}),
        never_seen=never_seen,
        lookups=[lookup(settings, row // ROWS_EACH) for row in range(len(data))],
    )
    return register(database, open_artifacts(settings), registration, actor="test")


def register_sample_set(settings: Settings, database: Database, **policy: Any) -> uuid.UUID:
    """Register exact draws of the conjugate mixture, each with its mirror image, so that their mean is exact."""
    data = points()
    precision = len(data) + 1.0
    offsets = np.random.default_rng(3).normal(size=(1000, 2)) / precision**0.5
    draws = data.sum(0) / precision + np.concatenate([offsets, -offsets])
    registration = Registration(
        name="sample set",
        family="gaussian-mixture",
        config=dict(CONFIG),
        policy={"epsilon": 0.05, "level": "estimated", "rungs": RUNGS, "seconds": None, **REFERENCE, **policy},
        posterior=save({"samples": draws, "chain": np.arange(len(draws)) % 4}),
        posterior_kind="samples",
        records=save({"x": data}),
        lookups=[lookup(settings, row // ROWS_EACH) for row in range(len(data))],
    )
    return register(database, open_artifacts(settings), registration, actor="test")


def register_worn_set(settings: Settings, database: Database, extra_rows: int = 8, **policy: Any) -> uuid.UUID:
    """Register draws of the conjugate mixture given more rows than it has, whose weights divide these rows out."""
    data, generator = points(), np.random.default_rng(5)
    extra = generator.normal(size=(extra_rows, 2)) + 0.5
    precision = len(data) + extra_rows + 1.0
    draws = (data.sum(0) + extra.sum(0)) / precision + generator.normal(size=(WORN_DRAWS, 2)) / precision**0.5
    weights = {
        "log_weights": ((draws[:, None] - extra) ** 2).sum((1, 2)) / 2,
        "log_weights_error": np.full(1, 1e-12),
    }
    registration = Registration(
        name="worn set",
        family="gaussian-mixture",
        config=dict(CONFIG),
        policy={"epsilon": 0.5, "level": "estimated", "rungs": RUNGS, "seconds": None, **policy},
        posterior=save({"samples": draws, "chain": np.arange(len(draws)) % 4, **weights}),
        posterior_kind="samples",
        records=save({"x": data}),
        lookups=[lookup(settings, row // ROWS_EACH) for row in range(len(data))],
    )
    return register(database, open_artifacts(settings), registration, actor="test")


def request_deletion(
    settings: Settings,
    database: Database,
    *people: int,
    request_id: str = "request-1",
    callback_urls: Sequence[str] = (),
    model_ids: Sequence[uuid.UUID] | None = None,
    records: Sequence[NamedRecord] = (),
    caller: str = "acme",
) -> DeletionView:
    """Store a deletion as the API would."""
    signer = open_signer(settings, database)
    with database.writing() as session:
        request = DeletionRequest(
            caller=caller,
            regulation="gdpr",
            lookups=[lookup(settings, number) for number in people],
            model_ids=model_ids,
            request_id=request_id,
            window_seconds=settings.batch_window_seconds,
            callback_urls=callback_urls,
            records=records,
        )
        return store_deletion(session, request, signer)


def store_deletion(session: Session, request: DeletionRequest, signer: StatementSigner) -> DeletionView:
    """Store one request that is not refused."""
    (view,) = store_deletions(session, [request], signer).outcomes
    assert isinstance(view, DeletionView)
    return view
