"""Scenes of the certificate benchmark: small trained models, one family per case, and rows to delete."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from ml.inference.variational import train
from ml.models import Family, build_family
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian

Kind = Literal["uniform", "clustered", "whole", "influential", "repeated"]
KINDS: tuple[Kind, ...] = ("uniform", "clustered", "whole", "influential", "repeated")
LARGEST_SHARE = 0.05
"""Largest share of the rows in one deletion, whole clusters excepted."""

_ROWS = 700
_CLUSTERS = 7
_SPREAD = 1.5  # of the cluster centres; each cluster has a standard deviation of 1
_LARGEST_CLUSTER = 0.2
_SMALL_CLASS = 0.15
_MIXTURE_ROWS = 1_000


@dataclass(frozen=True, eq=False)
class Model:
    """Posterior, its rows, and ∇²F over them."""

    data: Tensor
    posterior: MeanFieldGaussian
    hessian: Tensor | None


@dataclass(frozen=True, eq=False)
class Scene:
    """Model trained to convergence, with candidates for deletion."""

    family: Family
    convex: bool
    features: int
    model: Model
    clusters: tuple[Tensor, ...]  # a tenth to a fifth of all rows each
    influence: Tensor  # of each row


@dataclass(frozen=True)
class Case:
    """Family and data. `draw` returns rows and their cluster numbers. `convex`: one minimum from any start."""

    config: dict[str, int | float]
    draw: Callable[[int], tuple[Tensor, Tensor]]
    convex: bool = True


def make_scene(name: str, seed: int) -> Scene:
    case = CASES[name]
    family = build_family(name, case.config)
    data, cluster = case.draw(seed)
    trained = train(family, data, family.initial(data, seed), tolerance=0.0)
    model = Model(data, trained.posterior, trained.hessian)
    groups = [torch.nonzero(cluster == number).flatten() for number in range(int(cluster.max()) + 1)]
    small = tuple(rows for rows in groups if len(rows) <= _LARGEST_CLUSTER * len(data))
    return Scene(family, case.convex, int(case.config["dimensions"]), model, small, _influence(family, model))


def choose(kind: Kind, scene: Scene, model: Model, generator: torch.Generator) -> Tensor:
    """Return the positions of rows to delete from `model`: the scene's or, if repeated, what earlier deletions left.

    Every kind is random, so that deletions differ: a whole cluster comes with some other rows, and the most influential
    rows are chosen from a random half.
    """
    rows, size = len(model.data), _draw_size(len(model.data), generator)
    if kind == "clustered" or (kind == "repeated" and _draw_below(2, generator) == 1):
        features = model.data[:, : scene.features]
        distances: Tensor = (features - features[_draw_below(rows, generator)]).norm(dim=1)
        return distances.argsort()[:size]
    order = torch.randperm(rows, generator=generator)
    if kind == "whole":
        cluster = scene.clusters[_draw_below(len(scene.clusters), generator)]
        return torch.cat([cluster, order[~torch.isin(order, cluster)][:size]])
    if kind == "influential":
        half = order[: rows // 2]
        return half[scene.influence[half].argsort(descending=True)[:size]]
    return order[:size]


def _draw_size(rows: int, generator: torch.Generator) -> int:
    """Draw a size: every doubling from one row is equally likely, and so is the largest size."""
    largest = LARGEST_SHARE * rows
    return int(min(largest, math.exp(float(torch.rand((), generator=generator)) * math.log(2 * largest))))


def _draw_below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))


def _influence(family: Family, model: Model) -> Tensor:
    """Return |∇h| of each row in the natural metric, where (dμ, dσ) has the length √(dμ²/σ² + 2dσ²/σ²)."""
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
    """Draw images of three digits, the last of them rare, as their first principal components."""
    rows, _ = digits(test_rows=1, seed=seed)
    classes = [(seed + step) % 10 for step in range(3)]
    label = torch.stack([rows[:, -1] == digit for digit in classes])
    rows, label = rows[label.any(0)], label[:, label.any(0)].long().argmax(0)
    positions = _thin_class(label, 2)
    pixels, label = rows[positions, :-1], label[positions]
    pixels = pixels - pixels.mean(0)
    factors = pixels @ torch.linalg.svd(pixels, full_matrices=False).Vh[:6].T
    return torch.cat([factors / factors.std(0), label.double().unsqueeze(1)], 1), label


def _mixture(seed: int) -> tuple[Tensor, Tensor]:
    """Draw the paper's four classes, the last of them rare."""
    data, label = synthetic_mixture(_MIXTURE_ROWS, seed=seed)
    positions = _thin_class(label, 3)
    return data[positions], label[positions]


def _thin_class(label: Tensor, rare: int) -> Tensor:
    """Return positions with the rare class thinned to a share of _SMALL_CLASS."""
    others, members = torch.nonzero(label != rare).flatten(), torch.nonzero(label == rare).flatten()
    return torch.cat([others, members[: round(_SMALL_CLASS / (1 - _SMALL_CLASS) * len(others))]])


CASES = {
    "linear-regression": Case({"dimensions": 5, "noise_std": 1.0, "prior_std": 1.0}, _linear),
    "logistic-regression": Case({"dimensions": 5, "prior_std": 1.0}, _logistic),
    "softmax-regression": Case({"dimensions": 6, "classes": 3, "prior_std": 1.0, "draws": 6, "seed": 0}, _softmax),
    "gaussian-mixture": Case({"components": 4, "dimensions": 2, "prior_std": 1.0}, _mixture, convex=False),
}
