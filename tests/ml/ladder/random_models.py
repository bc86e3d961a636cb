"""Random models to predict deletions of: each family, rows of all scales and sizes, converged or far from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import ForgettingError
from ml.inference.variational import train
from ml.models.family import Family
from ml.models.gmm import GaussianMixture
from ml.models.linear import LinearRegression
from ml.models.logistic import LogisticRegression
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian

_SIZES = (5, 8, 30, 200)
_FAMILIES = 4
_STATES = ("trained", "trained", "start", "swept", "near", "far", "merged")


@dataclass(frozen=True, eq=False)
class RandomModel:
    family: Family
    posterior: MeanFieldGaussian
    data: Tensor


def random_model(seed: int) -> RandomModel | None:
    """Return a model; None if its training fails, so that it would not be registered."""
    generator = torch.Generator().manual_seed(seed)
    family, data = _family_and_rows(seed % _FAMILIES, seed // _FAMILIES, generator)
    try:
        posterior = _posterior(family, data, _STATES[seed % len(_STATES)], generator)
    except ForgettingError:
        return None
    return RandomModel(family, posterior, data)


def _family_and_rows(kind: int, variant: int, generator: torch.Generator) -> tuple[Family, Tensor]:
    n, dimensions = _SIZES[variant % len(_SIZES)], 1 + variant % 4
    features = torch.randn(n, dimensions, generator=generator, dtype=torch.float64)
    if variant % 3 == 1:
        features *= 10 ** (4 * torch.rand(dimensions, generator=generator, dtype=torch.float64) - 2)
    if variant % 5 == 2:
        features[:, -1] = features[:, 0] * (1 + 1e-6 * torch.randn(n, generator=generator, dtype=torch.float64))
    if variant % 7 == 3:
        features += 1e9
    if kind == 0:
        return GaussianMixture(2, dimensions, 5.0), features + 2 * (torch.arange(n) % 2 - 0.5).unsqueeze(1)
    classes = {1: 0, 2: 2, 3: 3}[kind]
    labels = torch.randint(classes, (n,), generator=generator).double() if classes else features.sum(1)
    data = torch.cat([features, labels.unsqueeze(1)], 1)
    families: list[Family] = [
        LinearRegression(dimensions, 0.5, 1.0),
        LogisticRegression(dimensions, 1.0),
        SoftmaxRegression(dimensions, 3, 1.0, draws=8),
    ]
    return families[kind - 1], data


def _posterior(family: Family, data: Tensor, state: str, generator: torch.Generator) -> MeanFieldGaussian:
    start = family.initial(data, 0)
    if state == "start":
        return start
    if state == "swept":
        return family.sweep(start, data)
    if state == "merged":  # a saddle of a mixture
        mean, std = (values.mean(0, keepdim=True).expand_as(values) for values in (start.mean, start.std))
        return family.sweep(MeanFieldGaussian(mean, std), data)
    optimum = train(family, data, start).posterior
    widths = {"trained": 0.0, "near": 0.1, "far": 10.0}[state]
    noise = torch.randn(optimum.mean.shape, generator=generator, dtype=torch.float64)
    return MeanFieldGaussian(optimum.mean + widths * noise * optimum.std, optimum.std)
