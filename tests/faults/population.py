"""Models with one component, whose posterior on the retained rows has a closed form. Torch-free."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from service.settings import Settings
from service.store.database import Database
from service.store.models.registry import Registration, register
from tests import samples
from tests.faults.artifact_stores import artifact_store


@dataclass(frozen=True, eq=False)
class Population:
    """The rows of one model, and the owner of each."""

    points: NDArray[np.float64]
    owners: NDArray[np.int64]

    def rows_of(self, people: Collection[int]) -> set[int]:
        return {int(row) for row in np.flatnonzero(np.isin(self.owners, list(people)))}

    def posterior_without(self, rows: Collection[int]) -> dict[str, NDArray[Any]]:
        retained = [row for row in range(len(self.points)) if row not in rows]
        return load(samples.posterior(self.points[retained]))


def draw_population(people: Sequence[int], rows_each: int, seed: int) -> Population:
    """Return random rows, `rows_each` for each person."""
    owners = np.repeat(np.asarray(people, dtype=np.int64), rows_each)
    return Population(np.random.default_rng(seed).normal(size=(len(owners), 2)), owners)


def register_population(settings: Settings, database: Database, population: Population) -> uuid.UUID:
    registration = Registration(
        name="population",
        family="gaussian-mixture",
        config=dict(samples.CONFIG),
        policy={"epsilon": 1e-6, "level": "proved", "rungs": samples.RUNGS, "seconds": None},
        posterior=samples.posterior(population.points),
        records=save({"x": population.points}),
        lookups=[samples.lookup(settings, int(owner)) for owner in population.owners],
    )
    return register(database, artifact_store(settings), registration, actor="test")
