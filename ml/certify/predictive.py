"""Posterior predictive log Σ_t w_t p(· | θ_t): what draws of a posterior, with their weights, together say of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.posteriors.ensemble import Ensemble
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.posterior_kinds import Reading

_ROWS_AT_ONCE = 1024

Posterior = MeanFieldGaussian | SampleSet | Ensemble
LogDensity = Callable[[Tensor, Tensor], Tensor]
"""Returns log-densities of rows under θ: one per row, or one per row and class."""


@runtime_checkable
class ClassifierFamily(Likelihood, Protocol):
    """Family whose rows end in a label, so that it has a 0-1 risk and class probabilities."""

    prior_std: float

    @property
    def classes(self) -> int: ...


@dataclass(frozen=True, eq=False)
class WeightedDraws:
    """Draws of θ with weights that sum to 1."""

    thetas: Tensor  # (M, p)
    weights: Tensor  # (M,)

    @classmethod
    def even(cls, thetas: Tensor) -> WeightedDraws:
        return cls(thetas, torch.full((len(thetas),), 1 / len(thetas), dtype=torch.float64, device=thetas.device))


def even_draws(posterior: Posterior, count: int, seed: int, reading: Reading) -> Tensor:
    """Draw parameters with noise, or chain positions, that depend on the seed only.

    Draws of the posteriors before and after then differ by the effect of forgetting alone. Weighted draws are picked at
    evenly spaced levels of their cumulative weight. An ensemble is its members, whose predictions are averaged.
    """
    if isinstance(posterior, Ensemble):
        return posterior.members
    if isinstance(posterior, SampleSet):
        draws = posterior.samples
        if reading == "weighted draws":
            levels = (torch.arange(count, dtype=torch.float64, device=draws.device) + 0.5) / count
            return draws[torch.searchsorted(posterior.weights.cumsum(0), levels).clamp(max=len(draws) - 1)]
        return draws[_evenly_spaced(len(draws), count)]
    mean, std = posterior.mean.flatten(), posterior.std.flatten()
    noise = torch.randn(count, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mean + std * noise.to(mean.device)


def weighted_draws(posterior: Posterior, count: int, seed: int, reading: Reading) -> WeightedDraws:
    """Draw as `even_draws` does, but keep the weights of weighted draws.

    The same draws then stand for a sample set before and after it was reweighted, and only the weights differ.
    """
    if isinstance(posterior, SampleSet) and reading == "weighted draws":
        positions = _evenly_spaced(len(posterior.samples), count)
        weights = torch.softmax(posterior.log_weights[positions], 0)
        return WeightedDraws(posterior.samples[positions], weights)
    return WeightedDraws.even(even_draws(posterior, count, seed, reading))


def log_predictive(log_density: LogDensity, draws: WeightedDraws, rows: Tensor) -> Tensor:
    """Return log Σ_t w_t exp(log_density(θ_t, rows)) in float64; the densities have the precision of the rows."""
    return log_predictives(log_density, draws.thetas, draws.weights.unsqueeze(0), rows)[0]


def log_predictives(log_density: LogDensity, thetas: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """Return the predictives under several lists of weights (k, M) of the same draws: (k, n) or (k, n, classes)."""
    total = torch.tensor(-math.inf, dtype=torch.float64, device=rows.device)
    with torch.no_grad():
        for draw, log_weight in zip(thetas, weights.log().T, strict=True):
            theta = draw.to(rows.dtype)
            values = torch.cat([log_density(theta, chunk).double() for chunk in torch.split(rows, _ROWS_AT_ONCE)])
            total = torch.logaddexp(total, values + log_weight.view(-1, *(1 for _ in values.shape)))
    if bool(total.isnan().any()):
        raise NumericalFailure("a score is NaN: pass finite draws and rows")
    return total


def class_log_probabilities(family: ClassifierFamily, theta: Tensor, rows: Tensor) -> Tensor:
    """Return log p(y | x, θ) of every label: (n, classes)."""
    if isinstance(family, Network):
        return family.outputs(theta, rows).log_softmax(1)
    return relabelled_log_likelihoods(family, family.classes, theta, rows)


def relabelled_log_likelihoods(likelihood: Likelihood, classes: int, theta: Tensor, rows: Tensor) -> Tensor:
    """Return the log-likelihood of each row with each label in place of its own: (n, classes)."""
    relabelled, scores = rows.clone(), []
    for label in range(classes):
        relabelled[:, -1] = label
        scores.append(likelihood.log_likelihood(theta, relabelled))
    return torch.stack(scores, 1)


def _evenly_spaced(length: int, count: int) -> Tensor:
    return torch.linspace(0, length - 1, min(count, length)).round().long()
