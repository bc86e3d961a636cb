"""Forgetting for networks: an influence step on a sample of the data, as long as a trust region allows.

    (G + τP) x = g        g = Σ_{z∈S'} ∇h(z),  P the precision of the posterior, τ the damping

The Gauss-Newton matrix G of a few thousand rows stands for that of all n. It misses curvature in most directions, and a
network is far from quadratic: undamped, x runs away along what the sample did not see. So x is judged on rows that G
has not seen, by the energy that it is meant to lower,

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ

which is F on the retained rows, tilted so that its slope at Δ = 0 is -g: what training left over is nobody's influence,
and stays. The damping is the one with which F̃ falls most, and that fall must be a fair part of what the quadratic model
predicts. τ is in units of the posterior's own precision, since a constant would mean something else for every weight.

A group that is a large share of the rows is not gone after one such step. There averaged descent on what is retained
goes on from where the step has led (`ml.inference.averaged_descent`), in a fraction of the time of another step. It
trembles, by more than a smaller group moves a posterior that is at rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_positions, retained_rows, retained_rows_of_samples
from ml.inference.averaged_descent import AveragedDescent, average_descent
from ml.models.checks import check_count
from ml.models.network import Network
from ml.models.network_energy import FROZEN_DRAWS, NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from ml.solvers import DampedSystem, Solution

_MOST_DAMPINGS = 8
_GROWTH = 4.0
_DESCENT = AveragedDescent(iterations=500, averaged=300, learning_rate=1e-3)
_LARGEST_PRECISION_LOSS = 0.75  # of a weight: the group's share is an estimate, and may not more than double a width


@dataclass(frozen=True)
class NetworkRecipe:
    """`rows_per_forgotten` rows for each forgotten one, within limits, sample the curvature; as many more judge.

    A group of at least `large_share` of the rows is followed by `descent`.
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
        """Half of what is retained at most, since the other half judges."""
        wanted = min(self.max_rows, max(self.min_rows, self.rows_per_forgotten * forgotten))
        return max(1, min(wanted, retained // 2))


DEFAULT_RECIPE = NetworkRecipe()
SAMPLES_RECIPE = NetworkRecipe(large_share=0.01)
"""Samples tremble as it is, and no certificate asks how near they are to rest."""


@dataclass(frozen=True, eq=False)
class TrustedStep:
    """x, and how it came about: ‖g - (G + τP)x‖/‖g‖, and the products with G, which all dampings tried have shared."""

    drift: Tensor
    damping: float
    agreement: float
    residual: float
    products: int


@dataclass(frozen=True, eq=False)
class ForgottenNetwork:
    posterior: MeanFieldGaussian
    step: TrustedStep
    seconds: float


@dataclass(frozen=True, eq=False)
class ForgottenSamples:
    sample_set: SampleSet
    step: TrustedStep
    seconds: float


def forget_network(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> ForgottenNetwork:
    """A mean-field posterior without the rows at positions `forgotten`.

    The means drift by x. The precision loses what the rows gave to it, 1/σ⁻² = 1/σ² - Σ_{S'} diag ∇²h, and does not
    fall below the prior's.
    """
    started = time.perf_counter()
    network.check_posterior(posterior)
    network.check_data(data)
    network.check_data(retained_rows(data, forgotten))
    energy = NetworkEnergy(network, data, frozen_draws(posterior, recipe.draws, seed=0))
    precision = posterior.std.square().reciprocal()
    step = influence(energy, precision, forgotten, generator, recipe)
    drift = descended(energy, step.drift, forgotten, generator, recipe)
    loss = energy.fisher_diagonal(forgotten, generator).minimum(_LARGEST_PRECISION_LOSS * precision)
    left = (precision - loss).maximum(precision.clamp(max=network.prior_std**-2))
    after = MeanFieldGaussian(posterior.mean + drift, left.rsqrt())
    return ForgottenNetwork(after, step, time.perf_counter() - started)


def forget_network_samples(
    network: Network,
    sample_set: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = SAMPLES_RECIPE,
) -> ForgottenSamples:
    """Stored samples without the rows at positions `forgotten`: all drift by x.

    Their width stays. A network's samples are too few and too near one another to say what it should become.
    """
    started = time.perf_counter()
    retained_rows_of_samples(network, sample_set.samples, data, forgotten)
    energy = NetworkEnergy(network, data, spread_out(sample_set.samples, recipe.draws))
    step = influence(energy, sampled_precision(energy, generator, recipe), forgotten, generator, recipe)
    drift = descended(energy, step.drift, forgotten, generator, recipe)
    after = SampleSet(sample_set.samples + drift, sample_set.chain)
    return ForgottenSamples(after, step, time.perf_counter() - started)


def influence(
    energy: NetworkEnergy,
    precision: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> TrustedStep:
    """The drift of the draws that takes out the influence of the rows at positions `forgotten`."""
    retained = retained_positions(energy.data, forgotten)
    size = recipe.sample_size(len(forgotten), len(retained))
    pull = energy.misfit_gradient(torch.zeros_like(precision), forgotten)
    return trusted_step(energy, precision, pull, retained, size, generator, recipe)


def descended(
    energy: NetworkEnergy,
    drift: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkRecipe = DEFAULT_RECIPE,
) -> Tensor:
    """Where descent on what is retained leads from `drift`; a small group stays where it was."""
    if len(forgotten) < recipe.large_share * len(energy.data):
        return drift
    retained = retained_rows(energy.data, forgotten)
    return drift + average_descent(
        NetworkEnergy(energy.network, retained, energy.draws + drift), generator, recipe.descent
    )


def trusted_step(
    energy: NetworkEnergy,
    precision: Tensor,
    downhill: Tensor,
    rows: Tensor,
    size: int,
    generator: torch.Generator,
    recipe: NetworkRecipe,
) -> TrustedStep:
    """x with (G + τP) x = downhill, and of the dampings τ tried the one that the judging rows like best.

    `size` rows give G and as many others judge: half of `rows` at most, but for a single row, which does both.
    """
    length = float(downhill.norm())
    if length == 0:
        return TrustedStep(downhill, recipe.damping, agreement=1.0, residual=0.0, products=0)
    size = max(1, min(size, len(rows) // 2))
    chosen = rows[torch.randperm(len(rows), generator=generator, device=generator.device)[: 2 * size].to(rows.device)]
    curvature = energy.curvature(chosen[:size], len(rows) / size)
    change = _tilted(energy, downhill, chosen[-size:], len(rows))
    system = DampedSystem(curvature, downhill, precision)

    def tried(damping: float) -> _Trial:
        solution = system.solve(damping, recipe.tolerance, recipe.max_products)
        # What is left unsolved is orthogonal to x, so xᵀGx = xᵀg - τ xᵀPx, without another product.
        x = solution.x
        predicted = -0.5 * float(downhill.dot(x) + damping * x.dot(precision * x))
        return _Trial(damping, solution, predicted, change(x))

    best = _most_trusted(tried, recipe)
    residual = best.solution.residual / length
    return TrustedStep(best.solution.x, best.damping, best.agreement, residual, system.products)


def _most_trusted(tried: Callable[[float], _Trial], recipe: NetworkRecipe) -> _Trial:
    """Of the dampings around the recipe's the one with which the energy falls most, and as predicted.

    The boldest may fall most by luck alone. Caution leads to where the quadratic model is right, and costs no product.
    """
    trials = [tried(recipe.damping), tried(_GROWTH * recipe.damping)]
    lowest = min(trials, key=lambda one: one.change)
    factor = _GROWTH if lowest is trials[-1] else 1 / _GROWTH  # where caution does not help, be bold
    while len(trials) < _MOST_DAMPINGS:
        trials.append(tried(factor * lowest.damping))
        if trials[-1].change >= lowest.change:
            break
        lowest = trials[-1]
    while not (trusted := [one for one in trials if one.agreement >= recipe.min_agreement]):
        most = max(one.damping for one in trials)
        if len(trials) >= _MOST_DAMPINGS:
            raise NumericalFailure(
                f"no step lowers the energy as predicted, with dampings up to {most:.3g}: the posterior is not near a "
                "minimum on these rows. Train it to convergence, or retrain without them"
            )
        trials.append(tried(_GROWTH * most))
    return min(trusted, key=lambda one: one.change)


@dataclass(frozen=True, eq=False)
class _Trial:
    damping: float
    solution: Solution
    predicted: float
    change: float

    @property
    def agreement(self) -> float:
        """Both are falls where all is well: a rise, and NaN, agree with nothing."""
        return self.change / self.predicted


def sampled_precision(
    energy: NetworkEnergy, generator: torch.Generator, recipe: NetworkRecipe = DEFAULT_RECIPE
) -> Tensor:
    """diag G + ∇²f from a sample of rows: the precision a mean-field posterior would have here."""
    size = min(recipe.min_rows, len(energy.data))
    rows = torch.randperm(len(energy.data), generator=generator, device=generator.device)[:size].to(energy.data.device)
    diagonal = energy.fisher_diagonal(rows, generator) * (len(energy.data) / size)
    return diagonal + energy.network.prior_std**-2


def _tilted(energy: NetworkEnergy, downhill: Tensor, judges: Tensor, total: int) -> Callable[[Tensor], float]:
    """Δ ↦ F̃(Δ) - F̃(0), estimated on the judging rows."""
    weight, origin = total / len(judges), torch.zeros_like(downhill)
    slope = weight * energy.misfit_gradient(origin, judges) + energy.prior_gradient(origin) + downhill

    def value(drift: Tensor) -> float:
        return weight * energy.misfit(drift, judges) + energy.prior_energy(drift) - float(slope.dot(drift))

    start = value(origin)
    return lambda drift: value(drift) - start


def spread_out(samples: Tensor, most: int) -> Tensor:
    """At most so many samples, evenly over the chains."""
    return samples[torch.linspace(0, len(samples) - 1, min(most, len(samples))).round().long()]
