"""A small ensemble for tests: three members of a tiny network, 90 rows of 30 people."""

from __future__ import annotations

import torch
from torch import Tensor

from ml.inference.members import train_ensemble
from ml.inference.shards import assign_shards
from ml.posteriors.ensemble import Ensemble, Recipe
from tests.ml.networks import TINY, learnable_rows

RECIPE = Recipe(epochs=3, batch_size=8, learning_rate=1e-2, prior_share=1 / 3)
OWNERS = [f"person-{row // 3}" for row in range(90)]


def small_ensemble() -> tuple[Ensemble, Tensor]:
    """Return the ensemble and its rows; rows 3i to 3i + 2 belong to one person."""
    data = learnable_rows(TINY, len(OWNERS))
    return train_ensemble(TINY, data, assign_shards(OWNERS, 3, b"key"), RECIPE, seed=5), data


def lone_ensemble() -> tuple[Ensemble, Tensor]:
    """Return an ensemble whose member 1 has read the first three rows, and no others."""
    data = learnable_rows(TINY, 30)
    shard = torch.tensor([1] * 3 + [0] * 15 + [2] * 12)
    return train_ensemble(TINY, data, shard, RECIPE, seed=5), data
