"""What the benchmark of certificates deletes from: small trained models, one family a case, and the rows to delete."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from ml.inference.variational import train
from ml.models import Family, build
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian

Kind = Literal["uniform", "clustered", "whole", "influential", "repeated"]
KINDS: tuple[Kind, ...] = ("uniform", "clustered", "whole", "influential", "repeated")
LARGEST_SHARE = 0.05
"""Of the rows, in one deletion; whole clusters apart."""

_ROWS = 700
_CLUSTERS = 7
_SPREAD = 1.5  # of the clusters' centres, each cluster having a standard deviation of 1
_LARGEST_CLUSTER = 0.2
_SMALL_CLASS = 0.15
_MIXTURE_ROWS = 1_000


@dataclass(frozen=True, eq=False)
class Model:
    """A posterior, the rows it speaks of and ∇²F over them."""

    data: Tensor
    posterior: MeanFieldGaussian
    hessian: Tensor


@dataclass(frozen=True, eq=False)
class Scene:
    """A model trained to convergence, and what of its data to delete."""

    family: Family
    convex: bool
    features: int
    model: Model
    clusters: tuple[Tensor, ...]  # rows that belong together, a tenth to a fifth of all
    influence: Tensor  # of each row


@dataclass(frozen=True)
class Case:
    """`draw` makes rows, and for each the number of the cluster it belongs to. `convex`: one minimum from any start."""

    config: dict[str, int | float]
    draw: Callable[[int], tuple[Tensor, Tensor]]
    convex: bool = True


def scene(name: str, seed: int) -> Scene:
    case = CASES[name]
    family = build(name, case.config)
    data, cluster = case.draw(seed)
    trained = train(family, data, family.initial(data, seed), tolerance=0.0)
    model = Model(data, trained.posterior, trained.hessian)
    groups = [torch.nonzero(cluster == number).flatten() for number in range(int(cluster.max()) + 1)]
    small = tuple(rows for rows in groups if len(rows) <= _LARGEST_CLUSTER * len(data))
    return Scene(family, case.convex, int(case.config["dimensions"]), model, small, _influence(family, model))


def choose(kind: Kind, scene: Scene, model: Model, generator: torch.Generator) -> Tensor:
    """Positions of the rows to delete from `model`: that of the scene or, if repeated, what earlier ones left of it.

    Chance has a part in each, so that no two deletions need be the same: a whole cluster goes with some rows of the
    others, and the most influential rows are those of a random half.
    """
    rows, size = len(model.data), _size(len(model.data), generator)
    if kind == "clustered" or (kind == "repeated" and _below(2, generator) == 1):
        features = model.data[:, : scene.features]
        distances: Tensor = (features - features[_below(rows, generator)]).norm(dim=1)
        return distances.argsort()[:size]
    order = torch.randperm(rows, generator=generator)
    if kind == "whole":
        cluster = scene.clusters[_below(len(scene.clusters), generator)]
        return torch.cat([cluster, order[~torch.isin(order, cluster)][:size]])
    if kind == "influential":
        half = order[: rows // 2]
        return half[scene.influence[half].argsort(descending=True)[:size]]
    return order[:size]


def _size(rows: int, generator: torch.Generator) -> int:
    """From one row on each doubling is as likely, and the largest size as likely as one more of them."""
    largest = LARGEST_SHARE * rows
    return int(min(largest, math.exp(float(torch.rand((), generator=generator)) * math.log(2 * largest))))


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))


def _influence(family: Family, model: Model) -> Tensor:
    """|∇h| of each row in the natural metric, where (dμ, dσ) has the length √(dμ²/σ² + 2dσ²/σ²)."""
    std = model.posterior.std.flatten()
    unit = torch.cat([std, std / math.sqrt(2)])
    rows = torch.split(model.data, 1)
    return torch.stack([(unit * family.group_gradient(model.posterior, row)).norm() for row in rows])


def _clustered_features(seed: int, dimensions: int) -> tuple[Tensor, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    cluster = torch.arange(_ROWS) % _CLUSTERS
    centres = _SPREAD * torch.randn(_CLUSTERS, dimensions, generator=generator, dtype=torch.float64)
    noise = torch.randn(_ROWS, dimensions, generator=generator, dtype=torch.float64)
    return centres[cluster] + noise, cluster, generator


def _linear(seed: int) -> tuple[Tensor, Tensor]:
    features, cluster, generator = _clustered_features(seed, 5)
    weights = torch.randn(5, generator=generator, dtype=torch.float64)
    noise = torch.randn(_ROWS, generator=generator, dtype=torch.float64)
    return torch.cat([features, (features @ weights + noise).unsqueeze(1)], 1), cluster


def _logistic(seed: int) -> tuple[Tensor, Tensor]:
    features, cluster, generator = _clustered_features(seed, 5)
    weights = 0.5 * torch.randn(5, generator=generator, dtype=torch.float64)
    chance = torch.rand(_ROWS, generator=generator, dtype=torch.float64)
    labels = (chance < (features @ weights).sigmoid()).double()
    return torch.cat([features, labels.unsqueeze(1)], 1), cluster


def _softmax(seed: int) -> tuple[Tensor, Tensor]:
    """Three digits, the last of them rarer, each picture by its first principal components."""
    rows, _ = digits(test_rows=1, seed=seed)
    chosen = [(seed + step) % 10 for step in range(3)]
    label = torch.stack([rows[:, -1] == digit for digit in chosen])
    rows, label = rows[label.any(0)], label[:, label.any(0)].long().argmax(0)
    kept = _thinned(label, 2)
    pixels, label = rows[kept, :-1], label[kept]
    pixels = pixels - pixels.mean(0)
    factors = pixels @ torch.linalg.svd(pixels, full_matrices=False).Vh[:6].T
    return torch.cat([factors / factors.std(0), label.double().unsqueeze(1)], 1), label


def _mixture(seed: int) -> tuple[Tensor, Tensor]:
    """The paper's four classes, the last of them rarer."""
    data, label = synthetic_mixture(_MIXTURE_ROWS, seed=seed)
    kept = _thinned(label, 3)
    return data[kept], label[kept]


def _thinned(label: Tensor, rare: int) -> Tensor:
    """All positions but those of most rows of one class, which keeps a share of _SMALL_CLASS."""
    others, own = torch.nonzero(label != rare).flatten(), torch.nonzero(label == rare).flatten()
    return torch.cat([others, own[: round(_SMALL_CLASS / (1 - _SMALL_CLASS) * len(others))]])


CASES = {
    "linear-regression": Case({"dimensions": 5, "noise_std": 1.0, "prior_std": 1.0}, _linear),
    "logistic-regression": Case({"dimensions": 5, "prior_std": 1.0, "draws": 10, "seed": 0}, _logistic),
    "softmax-regression": Case({"dimensions": 6, "classes": 3, "prior_std": 1.0, "draws": 6, "seed": 0}, _softmax),
    "gaussian-mixture": Case({"components": 4, "dimensions": 2, "prior_std": 1.0}, _mixture, convex=False),
}
