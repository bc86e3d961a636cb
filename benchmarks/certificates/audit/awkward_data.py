"""Data sets of the audit: ordinary ones, and eight kinds that certificates find hard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from benchmarks.certificates.audit.extended import Array

FamilyName = Literal["linear-regression", "logistic-regression", "softmax-regression", "gaussian-mixture"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)
DataKind = Literal[
    "ordinary",
    "unscaled",
    "collinear",
    "heavy tails",
    "separable",
    "tiny",
    "rare class",
    "duplicates",
    "leverage",
]
DATA_KINDS: tuple[DataKind, ...] = get_args(DataKind)

_FEWEST_ROWS, _MOST_ROWS = 40, 300
_FEWEST_FOR_RARE = 100
_RARE_SHARE = 0.01
_LEVERAGE = 100.0
_DISTINCT_ROWS = 6
_PRIOR_STDS = (0.5, 1.0, 3.0, 10.0)
_SOFTMAX_DRAWS = 6


@dataclass(frozen=True, eq=False)
class DataSet:
    """Rows as the family of models takes them, the configuration, and a class of each row (to forget one whole)."""

    family: FamilyName
    kind: DataKind
    config: dict[str, float]
    rows: Array
    group: Array


def draw_data(family: FamilyName, kind: DataKind, rng: np.random.Generator) -> DataSet:
    """Draw a small data set: at most 300 rows, 5 features, 3 classes or components."""
    n = _row_count(kind, rng)
    if family == "gaussian-mixture":
        return _mixture(kind, max(n, 4), rng)
    d = int(rng.integers(2, 4 if family == "softmax-regression" else 6))
    plain, features = _features(kind, n, d, rng)
    config: dict[str, float] = {"dimensions": d, "prior_std": float(rng.choice(_PRIOR_STDS))}
    if family == "linear-regression":
        target, group = _targets(kind, plain, rng)
        config["noise_std"] = float(rng.choice([0.3, 1.0]))
    elif family == "logistic-regression":
        target = group = _labels(kind, plain, 2, rng)
    else:
        config |= {"classes": int(rng.integers(2, 4)), "draws": _SOFTMAX_DRAWS, "seed": int(rng.integers(100))}
        target = group = _labels(kind, plain, int(config["classes"]), rng)
    return DataSet(family, kind, config, np.column_stack([features, target]), group)


def _row_count(kind: DataKind, rng: np.random.Generator) -> int:
    if kind == "tiny":
        return int(rng.integers(3, 13))
    fewest = _FEWEST_FOR_RARE if kind == "rare class" else _FEWEST_ROWS
    return int(np.exp(rng.uniform(np.log(fewest), np.log(_MOST_ROWS + 1))))


def _features(kind: DataKind, n: int, d: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return features of unit scale, which targets depend on, and the features as registered."""
    plain = rng.standard_t(1.5, (n, d)) if kind == "heavy tails" else rng.normal(size=(n, d))
    if kind == "duplicates":
        plain = plain[rng.integers(0, min(n, _DISTINCT_ROWS), n)]
    if kind == "collinear":
        plain[:, -1] = plain[:, :-1] @ rng.normal(size=d - 1) + 10 ** rng.uniform(-8, -2) * rng.normal(size=n)
    if kind == "leverage":
        features = plain.copy()
        features[rng.integers(n)] *= _LEVERAGE
        return (features if rng.random() < 0.5 else plain), features
    return plain, plain * 10 ** rng.uniform(-4, 4, d) if kind == "unscaled" else plain


def _targets(kind: DataKind, plain: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return targets of a linear regression, with classes: a rare one, or the rows on one side of the first feature."""
    n, d = plain.shape
    noise = rng.standard_t(1.5, n) if kind == "heavy tails" else rng.normal(size=n)
    target = plain @ rng.normal(size=d) + (0.0 if kind == "separable" else 1.0) * noise
    group = (np.arange(n) < _rare_count(n)) if kind == "rare class" else (plain[:, 0] > 0)
    return target + 5.0 * (group if kind == "rare class" else 0.0), group.astype(float)


def _labels(kind: DataKind, plain: Array, classes: int, rng: np.random.Generator) -> Array:
    n, d = plain.shape
    if kind == "rare class":
        labels: Array = rng.integers(0, max(1, classes - 1), n).astype(float)
        labels[: _rare_count(n)] = classes - 1
        return labels
    logits: Array = plain @ rng.normal(size=(d, classes)) * (1.0 if classes > 2 else 0.7)
    if kind != "separable":
        logits = logits + rng.gumbel(size=logits.shape)
    return np.asarray(logits.argmax(1), dtype=float)


def _mixture(kind: DataKind, n: int, rng: np.random.Generator) -> DataSet:
    d, components = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    group = rng.integers(0, components, n)
    if kind == "rare class":
        group = rng.integers(0, components - 1, n)
        group[: _rare_count(n)] = components - 1
    spread = 20.0 if kind == "separable" else 3.0
    centres = spread * rng.normal(size=(components, d))
    _, noise = _features(kind, n, max(d, 2), rng)
    config = {"components": components, "dimensions": d, "prior_std": float(rng.choice(_PRIOR_STDS[1:]))}
    return DataSet("gaussian-mixture", kind, config, centres[group] + noise[:, :d], group.astype(float))


def _rare_count(n: int) -> int:
    return max(1, round(_RARE_SHARE * n))
