"""Rows to forget: one, a tenth, half, a class, the most influential, and one after another."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from benchmarks.certificates.audit.awkward_data import DataSet
from benchmarks.certificates.audit.extended import Array

Removal = Literal["one", "tenth", "half", "class", "influential", "sequence"]
REMOVALS: tuple[Removal, ...] = get_args(Removal)
SINGLE_REMOVALS: tuple[Removal, ...] = REMOVALS[:-1]
SEQUENCE_LENGTH = 50

_INFLUENTIAL_SHARE = 0.05


def choose_rows(removal: Removal, data: DataSet, flat: Array, rng: np.random.Generator) -> Array:
    """Return positions to forget, at most all but the rows that the model needs. `flat` is λ of the posterior."""
    n = len(data.rows)
    order = rng.permutation(n)
    if removal == "class":
        order = order[np.argsort(data.group[order] != rng.choice(data.group), kind="stable")]
        size = int((data.group == data.group[order[0]]).sum())
    elif removal == "influential":
        order = np.argsort(-influence(data, flat), kind="stable")
        size = max(1, round(_INFLUENTIAL_SHARE * n))
    else:
        size = {"one": 1, "sequence": 1, "tenth": max(1, n // 10), "half": max(1, n // 2)}[removal]
    return order[: min(size, n - _least_rows(data))]


def influence(data: DataSet, flat: Array) -> Array:
    """Return about how strongly each row pulls at the means, in widths: |residual| times |x∘std|."""
    mean, std = np.split(np.asarray(flat, dtype=float), 2)
    if data.family == "gaussian-mixture":
        centres, widths = mean.reshape(int(data.config["components"]), -1), float(std.max())
        return np.asarray(np.linalg.norm(data.rows[:, None] - centres, axis=2).min(1) * widths)
    features, target = data.rows[:, :-1], data.rows[:, -1]
    if data.family == "linear-regression":
        residual = np.abs(target - features @ mean)
        return np.asarray(residual * np.linalg.norm(features * std, axis=1))
    classes = int(data.config.get("classes", 2))
    weights = mean.reshape(-1, features.shape[1])
    logits = features @ (weights if len(weights) == classes else np.stack([0 * mean, mean])).T
    mass = np.exp(logits - logits.max(1, keepdims=True))
    wrong = 1 - mass[np.arange(len(mass)), target.astype(int)] / mass.sum(1)
    return np.asarray(wrong * np.linalg.norm(features * std.reshape(weights.shape).max(0), axis=1))


def _least_rows(data: DataSet) -> int:
    return int(data.config.get("components", 1))
