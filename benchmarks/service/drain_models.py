"""Models of `lethe bench drain`: a registered model with one record per person.

The model is a softmax regression, the Bayesian last layer of a classifier. It has so many rows that a thousand people
are a small part: as in practice, most work of a batch is a pass over the retained rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import torch
from safetensors.torch import save

import ml
from service.store.access.identities import Identity, IdentityHasher
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest
from service.store.models.registry import Registration, register
from worker.context import WorkerContext

FAMILY = "softmax-regression"
CONFIG: dict[str, Any] = {"dimensions": 10, "classes": 10, "prior_std": 1.0, "draws": 4, "seed": 1}
POLICY = {"epsilon": 1e-3, "level": "proved", "rungs": ["influence", "newton", "warm", "retrain"], "seconds": None}


@dataclass(frozen=True)
class Trained:
    """Posterior and records of a registration."""

    posterior: bytes
    records: bytes
    count: int


@dataclass(frozen=True)
class Population:
    """Registered model, and its people without a deletion request."""

    model_id: UUID
    remaining_lookups: Iterator[bytes]

    def request_deletions(self, context: WorkerContext, count: int) -> None:
        """Store a deletion for each of the next `count` people, as the API does."""
        lookups = list(itertools.islice(self.remaining_lookups, count))
        if len(lookups) < count:
            raise ValueError("all people are forgotten: use more rows or fewer rounds")
        requests = [DeletionRequest("bench", "gdpr", [lookup], None, "bench", window_seconds=0.0) for lookup in lookups]
        with context.database.writing() as session:
            store_deletions(session, requests, context.signer)


def train(rows: int) -> Trained:
    generator = torch.Generator().manual_seed(1)
    dimensions, classes = CONFIG["dimensions"], CONFIG["classes"]
    features = torch.randn(rows, dimensions, generator=generator, dtype=torch.float64) / dimensions**0.5
    weights = 2 * torch.randn(classes, dimensions, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(features @ weights.T, 1), 1, generator=generator)
    points = torch.cat([features, labels.double()], 1)
    family = ml.build_family(FAMILY, CONFIG)
    trained = ml.train(family, points, family.initial(points, 0))
    return Trained(trained.posterior.to_bytes(), save({"x": points}), rows)


def populate(context: WorkerContext, name: str, trained: Trained) -> Population:
    """Register the model as `name`, with its own people."""
    hasher = IdentityHasher(*context.settings.identity_keys())
    people = [Identity("email", f"{name}-{number}@example.org") for number in range(trained.count)]
    lookups = [hasher.lookup(person) for person in people]
    registration = Registration(
        name=name,
        family=FAMILY,
        config=CONFIG,
        policy=POLICY,
        posterior=trained.posterior,
        records=trained.records,
        lookups=lookups,
    )
    model_id = register(context.database, context.artifacts, registration, actor="lethe bench")
    return Population(model_id, iter(lookups))
