"""What `lethe bench drain` drains: a registered model with one record for each of many people, who ask to be forgotten.

A softmax regression, the Bayesian last layer of a classifier, on rows enough that a thousand people are a small part of
them: as in practice, the work of a batch is then a pass over those who stay.
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
from service.store.deletions.creation import NewDeletion, create_many
from service.store.models.registry import Registration, register
from worker.context import WorkerContext

FAMILY = "softmax-regression"
CONFIG: dict[str, Any] = {"dimensions": 10, "classes": 10, "prior_std": 1.0, "draws": 4, "seed": 1}
POLICY = {"epsilon": 1e-3, "level": "proved", "rungs": ["influence", "newton", "warm", "retrain"], "seconds": None}


@dataclass(frozen=True)
class Trained:
    """The two files of a registration."""

    posterior: bytes
    records: bytes
    count: int


@dataclass(frozen=True)
class Population:
    """A model by its id, and those of its people who have not asked yet."""

    model_id: UUID
    unasked: Iterator[bytes]

    def ask(self, context: WorkerContext, count: int) -> None:
        """Store a deletion for each of the next so many people, as the API would."""
        lookups = list(itertools.islice(self.unasked, count))
        if len(lookups) < count:
            raise ValueError("nobody is left to forget: take more rows or fewer rounds")
        news = [NewDeletion("bench", "gdpr", [lookup], None, "bench", window_seconds=0.0) for lookup in lookups]
        with context.database.writing() as session:
            create_many(session, news, context.signer)


def train(rows: int) -> Trained:
    random = torch.Generator().manual_seed(1)
    dimensions, classes = CONFIG["dimensions"], CONFIG["classes"]
    features = torch.randn(rows, dimensions, generator=random, dtype=torch.float64) / dimensions**0.5
    weights = 2 * torch.randn(classes, dimensions, generator=random, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(features @ weights.T, 1), 1, generator=random)
    points = torch.cat([features, labels.double()], 1)
    family = ml.build(FAMILY, CONFIG)
    trained = ml.train(family, points, family.initial(points, 0))
    return Trained(trained.posterior.to_bytes(), save({"x": points}), rows)


def populate(context: WorkerContext, name: str, trained: Trained) -> Population:
    """Register the model under `name`, with people of its own."""
    hasher = IdentityHasher(context.settings.identity_key_bytes())
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
