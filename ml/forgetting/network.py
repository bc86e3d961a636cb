"""Forgetting for networks: an influence step on a sample of the data, within a trust region.

    (G + τP) x = g        g = Σ_{z∈S'} ∇h(z),  P the precision of the posterior, τ the damping

The Gauss-Newton matrix G of a few thousand rows approximates that of all n. It misses curvature in most directions,
and a network is far from quadratic: undamped, x diverges in directions that the sample does not constrain. So x is
judged on other rows, by the energy that it should lower,

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ

which is F on the retained rows, tilted so that its slope at Δ = 0 is -g: the slope left by training is no row's
influence, and stays. The damping is the one with the largest decrease of F̃, and that decrease must be a fair part of
what the quadratic model predicts. τ is in units of the posterior's own precision, since a constant would mean something
different for every weight.

One such step does not remove a group that is a large share of the rows. Then averaged descent on F̃
(`ml.inference.averaged_descent`, `ml.forgetting.tilted_minibatches`) continues from the step, in a fraction of the
time of another one. For a smaller group its noise exceeds the movement of a posterior that has converged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_positions, retained_rows, retained_rows_of_samples
from ml.forgetting.tilted_minibatches import tilt
from ml.inference.averaged_descent import AveragedDescent, average_descent
from ml.models.checks import check_count
from ml.models.network import Network
from ml.models.network_energy import FROZEN_DRAWS, NetworkEnergy, frozen_energy
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from ml.solvers import DampedSystem, Solution

Posterior = TypeVar("Posterior")

_MAX_DAMPINGS = 8
_GROWTH = 4.0
_DESCENT = AveragedDescent(iterations=500, averaged=300, learning_rate=1e-3)
_MAX_PRECISION_LOSS = 0.75  # of a weight: the estimate of the group's share must not more than double a width


@dataclass(frozen=True)
class NetworkRecipe:
    """Settings of an influence step.

    The curvature is sampled on `rows_per_forgotten` rows for each forgotten one, within `min_rows` and `max_rows`; as
    many other rows judge. `descent` follows if the group is at least `large_share` of the rows.
    """

    draws: int = FROZEN_DRAWS
    damping: float = 10.0
    tolerance: float = 0.1
    max_products: int = 60
    min_agreement: float = 0.25
    rows_per_forgotten: int = 8
    min_rows: int = 512
    max_rows: int = 6144
    large_share: float = 0.05
    descent: AveragedDescent = _DESCENT

    def __post_init__(self) -> None:
        for name in ("draws", "max_products", "rows_per_forgotten", "min_rows", "max_rows"):
            check_count(name, getattr(self, name))
        if not 0 < self.damping < math.inf or not 0 < self.min_agreement < 1:
            raise InvalidInput(
                f"damping is {self.damping} and min_agreement {self.min_agreement}: pass a positive damping and an "
                "agreement between 0 and 1"
            )

    def sample_size(self, forgotten: int, retained: int) -> int:
        """Return the number of rows that sample the curvature: at most half of the retained, as the others judge."""
        size = min(self.max_rows, max(self.min_rows, self.rows_per_forgotten * forgotten))
        return max(1, min(size, retained // 2))


DEFAULT_RECIPE = NetworkRecipe()


@dataclass(frozen=True, eq=False)
class TrustedStep:
    """Step x with its damping τ. `residual` is ‖g - (G + τP)x‖/‖g‖; `products` with G served all dampings tried."""

    drift: Tensor
    damping: float
    agreement: float
    residual: float
    products: int


@dataclass(frozen=True, eq=False)
class InfluenceResult(Generic[Posterior]):
    posterior: Posterior
    step: TrustedStep
    seconds: float


def forget_network(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> InfluenceResult[MeanFieldGaussian]:
    """Remove the rows at positions `forgotten` from a mean-field posterior.

    The means move by x. The precision loses the contribution of the rows, 1/σ⁻² = 1/σ² - Σ_{S'} diag ∇²h, but does not
    fall below the prior's.
    """
    started = time.perf_counter()
    network.check_posterior(posterior)
    network.check_data(data)
    network.check_data(retained_rows(data, forgotten))
    energy = frozen_energy(network, posterior, data, recipe.draws)
    precision = posterior.std.square().reciprocal()
    step = influence_step(energy, precision, forgotten, generator, recipe)
    drift = descend(energy, step.drift, forgotten, generator, recipe)
    loss = energy.fisher_diagonal(forgotten, generator).minimum(_MAX_PRECISION_LOSS * precision)
    remaining = (precision - loss).maximum(precision.clamp(max=network.prior_std**-2))
    after = MeanFieldGaussian(posterior.mean + drift, remaining.rsqrt())
    return InfluenceResult(after, step, time.perf_counter() - started)


def forget_network_samples(
    network: Network,
    sample_set: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> InfluenceResult[SampleSet]:
    """Remove the rows at positions `forgotten` from stored samples: all move by x.

    Their width stays. A network's samples are too few and too close to each other to estimate a new one.
    """
    started = time.perf_counter()
    retained_rows_of_samples(network, sample_set.samples, data, forgotten)
    energy = NetworkEnergy(network, data, thin(sample_set.samples, recipe.draws))
    step = influence_step(energy, sampled_precision(energy, generator, recipe), forgotten, generator, recipe)
    drift = descend(energy, step.drift, forgotten, generator, recipe)
    after = SampleSet(sample_set.samples + drift, sample_set.chain)
    return InfluenceResult(after, step, time.perf_counter() - started)


def influence_step(
    energy: NetworkEnergy,
    precision: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> TrustedStep:
    """Return the drift of the draws that removes the influence of the rows at positions `forgotten`."""
    retained = retained_positions(energy.data, forgotten)
    size = recipe.sample_size(len(forgotten), len(retained))
    pull = energy.misfit_gradient(torch.zeros_like(precision), forgotten)
    return trusted_step(energy, precision, pull, retained, size, generator, recipe)


def descend(
    energy: NetworkEnergy,
    drift: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> Tensor:
    """Return the drift after descent on the tilted energy; `drift` itself if the group is small."""
    if len(forgotten) < recipe.large_share * len(energy.data):
        return drift
    return drift + average_descent(tilt(energy, drift, forgotten), generator, recipe.descent)


def trusted_step(
    energy: NetworkEnergy,
    precision: Tensor,
    downhill: Tensor,
    rows: Tensor,
    size: int,
    generator: torch.Generator,
    recipe: NetworkRecipe,
) -> TrustedStep:
    """Return x with (G + τP) x = downhill, for the damping τ that the judging rows favour among those tried.

    `size` rows give G and as many others judge: at most half of `rows` each. A single row does both.
    """
    length = float(downhill.norm())
    if length == 0:
        return TrustedStep(downhill, recipe.damping, agreement=1.0, residual=0.0, products=0)
    size = max(1, min(size, len(rows) // 2))
    chosen = rows[torch.randperm(len(rows), generator=generator, device=generator.device)[: 2 * size].to(rows.device)]
    curvature = energy.curvature(chosen[:size], len(rows) / size)
    change = _tilted(energy, downhill, chosen[-size:], len(rows))
    system = DampedSystem(curvature, downhill, precision)

    def attempt(damping: float) -> _Trial:
        solution = system.solve(damping, recipe.tolerance, recipe.max_products)
        # The residual is orthogonal to x, so xᵀGx = xᵀg - τ xᵀPx needs no further product.
        x = solution.x
        predicted = -0.5 * float(downhill.dot(x) + damping * x.dot(precision * x))
        return _Trial(damping, solution, predicted, change(x))

    best = _most_trusted(attempt, recipe)
    residual = best.solution.residual / length
    return TrustedStep(best.solution.x, best.damping, best.agreement, residual, system.products)


def _most_trusted(attempt: Callable[[float], _Trial], recipe: NetworkRecipe) -> _Trial:
    """Return the trial with the largest decrease of the energy among those that fall as predicted.

    The smallest damping may have the largest decrease by luck alone. A larger one stays where the quadratic model is
    right, and costs no product.
    """
    trials = [attempt(recipe.damping), attempt(_GROWTH * recipe.damping)]
    lowest = min(trials, key=lambda trial: trial.change)
    factor = _GROWTH if lowest is trials[-1] else 1 / _GROWTH  # if more damping does not help, try less
    while len(trials) < _MAX_DAMPINGS:
        trials.append(attempt(factor * lowest.damping))
        if trials[-1].change >= lowest.change:
            break
        lowest = trials[-1]
    while not (trusted := [trial for trial in trials if trial.agreement >= recipe.min_agreement]):
        largest = max(trial.damping for trial in trials)
        if len(trials) >= _MAX_DAMPINGS:
            raise NumericalFailure(
                f"no step lowers the energy as predicted, with dampings up to {largest:.3g}: the posterior is not near "
                "a minimum on these rows. Train it to convergence, or retrain without them"
            )
        trials.append(attempt(_GROWTH * largest))
    return min(trusted, key=lambda trial: trial.change)


@dataclass(frozen=True, eq=False)
class _Trial:
    damping: float
    solution: Solution
    predicted: float
    change: float

    @property
    def agreement(self) -> float:
        """Both are negative for a good step, so that an increase or NaN never agrees."""
        return self.change / self.predicted


def sampled_precision(
    energy: NetworkEnergy, generator: torch.Generator, recipe: NetworkRecipe = DEFAULT_RECIPE
) -> Tensor:
    """Return diag G + ∇²f from a sample of rows: the precision that a mean-field posterior would have at the draws."""
    size = min(recipe.min_rows, len(energy.data))
    rows = torch.randperm(len(energy.data), generator=generator, device=generator.device)[:size].to(energy.data.device)
    diagonal = energy.fisher_diagonal(rows, generator) * (len(energy.data) / size)
    return diagonal + energy.network.prior_std**-2


def _tilted(energy: NetworkEnergy, downhill: Tensor, judges: Tensor, total: int) -> Callable[[Tensor], float]:
    """Return Δ ↦ F̃(Δ) - F̃(0), estimated on the judging rows."""
    weight, origin = total / len(judges), torch.zeros_like(downhill)
    slope = weight * energy.misfit_gradient(origin, judges) + energy.prior_gradient(origin) + downhill

    def value(drift: Tensor) -> float:
        return weight * energy.misfit(drift, judges) + energy.prior_energy(drift) - float(slope.dot(drift))

    start = value(origin)
    return lambda drift: value(drift) - start


def thin(samples: Tensor, count: int) -> Tensor:
    """Return at most `count` samples, evenly spaced over the chains."""
    return samples[torch.linspace(0, len(samples) - 1, min(count, len(samples))).round().long()]
