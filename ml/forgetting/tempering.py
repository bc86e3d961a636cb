"""Tempered forgetting: the forgotten rows S' leave the target of a sample set in stages (after Del Moral et al. 2006).

    π_τ(θ) ∝ p(θ) p(R | θ) p(S' | θ)^(1-τ)        π_0: the posterior before, π_1: that of the retained rows R

A stage raises τ by the largest δ that the weights carry, then makes them even again:

    weigh       log w_t -= δ log p(S' | θ_t), with δ such that every chain keeps at least half of its draws (ESS)
    resample    systematically, within each chain: chains stay independent of each other, and copies neighbours
    move        every draw by chain steps that leave π_τ invariant

Moves by HMC on all rows are exact: as the draws grow in number, the law of a moved draw tends to π_1, whatever the
steps. The widths in which HMC steps are those of the draws themselves, an adaptation that vanishes in the same limit.
Moves by SGLD or SGHMC on minibatches are for networks whose rows are too many: their law is that of the chain, near π_1
only as far as its steps are short, and moves that go on with training show in a control with nothing removed.

What a certificate may use: the moved draws have even weights, so they are judged as new draws are, by diagnostics
against the retained rows. Neighbouring copies that no move separated lower their effective number there. `ess_path` and
`ancestors` tell how much of the set the weights left; no move carries draws from one mode to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor
from torch.func import grad, vmap

from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_rows_of_samples
from ml.inference.hmc import HMC, Energy
from ml.inference.sghmc import SGHMC
from ml.inference.sgld import SGLD
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet

_ONE_STEP = HMC(steps=1, tuning=0)
_BISECTIONS = 40
_MAX_STAGES = 100
_MIN_ACCEPTED, _MAX_STEPS = 0.6, 64
_DRAWS_PER_PARAMETER = 5  # from which on a covariance of the draws is a fair frame for their steps
_MAX_BATCHED_PARAMETERS = 5_000  # convolutions are slow with batched weights

OnStage = Callable[[int, float], None]
"""Called after each stage, with its number and τ."""


@dataclass(frozen=True)
class TemperConfig:
    """Configuration of the stages: `moves` iterations of the algorithm in each.

    HMC reads every row. It begins with `steps` a move, and doubles them where fewer than 60 % of the ends are accepted.
    SGLD and SGHMC read `batch_size` rows a step. Beyond `max_row_passes` row gradients tempering is given up.
    """

    algorithm: HMC | SGLD | SGHMC = _ONE_STEP
    moves: int = 3
    batch_size: int | None = None
    min_relative_ess: float = 0.5
    max_row_passes: float = math.inf

    def __post_init__(self) -> None:
        if self.moves < 1:
            raise InvalidInput(f"moves is {self.moves}: pass at least 1")
        if not 0 < self.min_relative_ess < 1:
            raise InvalidInput(f"min_relative_ess is {self.min_relative_ess}: pass a share between 0 and 1")
        if self.exact != (self.batch_size is None):
            raise InvalidInput(
                "HMC reads every row, SGLD and SGHMC minibatches: pass a batch_size with the latter only"
            )

    @property
    def exact(self) -> bool:
        """Whether the moves leave the target invariant."""
        return isinstance(self.algorithm, HMC)

    def row_passes(self, draws: int, rows: int, steps: int | None = None) -> int:
        """Return the row gradients that the moves of one stage take."""
        if isinstance(self.algorithm, HMC):
            return draws * rows * (1 + self.moves * (steps or self.algorithm.steps))
        return draws * min(self.batch_size or rows, rows) * self.moves


@dataclass(frozen=True, eq=False)
class Tempered:
    """Draws after the last stage, with even weights, and how they came about.

    `ess_path` has the smallest relative effective sample size of a chain's weights at each stage, before resampling;
    `ancestors` counts the draws before that have a descendant; `copies` the draws that equal another; `row_passes` the
    row gradients taken; `acceptance` is the share of accepted ends in the last stage, 1 for minibatches.
    """

    sample_set: SampleSet
    stages: int
    ess_path: tuple[float, ...]
    row_passes: int
    acceptance: float
    ancestors: int
    copies: int
    exact: bool


def temper(
    likelihood: Likelihood,
    before: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    config: TemperConfig = TemperConfig(),
    on_stage: OnStage | None = None,
) -> Tempered:
    """Remove the rows at positions `forgotten` of `data` in stages. Weights that the draws already have count."""
    retained = retained_rows_of_samples(likelihood, before.samples, data, forgotten)
    sampler = _Sampler(likelihood, retained, data[forgotten], before.chain, generator, config)
    state = _Stage(before.samples, before.log_weights, torch.arange(len(before.samples), device=before.chain.device))
    for number in range(1, _MAX_STAGES + 1):
        state = sampler.advance(state)
        if on_stage is not None:
            on_stage(number, state.removed)
        if state.removed == 1:
            return _conclude(state, before.chain, config)
    raise NumericalFailure(
        f"{100 * state.removed:.2g} % of the group is removed after {_MAX_STAGES} stages: retrain on the retained rows"
    )


def move_draws(
    likelihood: Likelihood,
    sample_set: SampleSet,
    data: Tensor,
    generator: torch.Generator,
    stages: int,
    config: TemperConfig = TemperConfig(),
) -> SampleSet:
    """Return the draws after the moves of that many stages with nothing removed: the control of `temper`."""
    sampler = _Sampler(likelihood, data, data[:0], sample_set.chain, generator, config)
    state = _Stage(sample_set.samples, sample_set.log_weights, sample_set.chain, removed=1.0)
    for _ in range(stages):
        state = sampler.move(state, state.samples)
    return SampleSet(state.samples, sample_set.chain, sample_set.log_weights, sample_set.log_weights_error)


def expected_row_passes(
    likelihood: Likelihood, before: SampleSet, data: Tensor, forgotten: Tensor, config: TemperConfig = TemperConfig()
) -> int:
    """Return the row gradients that tempering will take, from passes over the forgotten rows alone.

    The first stage removes δ of the group, so about 1/δ stages follow. Later ones may be shorter, as the draws spread
    without the group, and HMC may need more steps.
    """
    pull = Potential(likelihood, data[forgotten], with_prior=False).values(before.samples)
    fraction, _ = _largest_fraction(pull, before.log_weights, before.chain, 1.0, config.min_relative_ess)
    stages = math.ceil(1 / fraction) if fraction > 0 else _MAX_STAGES
    draws = len(before.samples)
    return stages * (config.row_passes(draws, len(data)) + draws * len(forgotten))


@dataclass(frozen=True, eq=False)
class _Stage:
    """Draws at τ = `removed`, with the draws of the beginning that they descend from and what they cost so far."""

    samples: Tensor
    log_weights: Tensor
    ancestor: Tensor
    removed: float = 0.0
    ess_path: tuple[float, ...] = ()
    row_passes: int = 0
    acceptance: float = 1.0
    steps: int | None = None


@dataclass(frozen=True, eq=False)
class _Sampler:
    likelihood: Likelihood
    retained: Tensor
    group: Tensor
    chain: Tensor
    generator: torch.Generator
    config: TemperConfig

    def advance(self, state: _Stage) -> _Stage:
        """Weigh, resample and move."""
        pull = Potential(self.likelihood, self.group, with_prior=False).values(state.samples)
        if not bool(torch.isfinite(pull).all()):
            raise NumericalFailure("a draw gives the forgotten rows no finite likelihood: retrain on the retained rows")
        left = 1 - state.removed
        fraction, ess = _largest_fraction(pull, state.log_weights, self.chain, left, self.config.min_relative_ess)
        log_weights = state.log_weights + fraction * pull
        chosen = _resample(log_weights, self.chain, self.generator)
        weighed = replace(
            state,
            log_weights=log_weights,
            removed=1.0 if fraction == left else state.removed + fraction,
            ess_path=(*state.ess_path, ess),
            row_passes=state.row_passes + len(pull) * len(self.group),
        )
        after = self.move(weighed, state.samples[chosen])
        return replace(after, log_weights=torch.zeros_like(log_weights), ancestor=state.ancestor[chosen])

    def move(self, state: _Stage, samples: Tensor) -> _Stage:
        algorithm = self.config.algorithm
        if isinstance(algorithm, HMC):
            return self._move_exactly(state, samples, state.steps or algorithm.steps)
        return self._move_by_minibatches(state, samples, algorithm)

    def _move_exactly(self, state: _Stage, samples: Tensor, steps: int) -> _Stage:
        """Repeat the moves with twice the steps until enough are accepted. Every repetition leaves π_τ invariant."""
        frame = _frame(state, self.chain)
        passes, rows = state.row_passes, len(self.retained) + len(self.group)
        while True:
            passes += self._check_cost(passes, self.config.row_passes(len(samples), rows, steps))
            samples, acceptance = self._walk(HMC(steps, tuning=0), frame, state.removed, samples)
            if acceptance >= _MIN_ACCEPTED or steps >= _MAX_STEPS:
                return replace(state, samples=samples, row_passes=passes, acceptance=acceptance, steps=steps)
            steps *= 2

    def _walk(self, algorithm: HMC, frame: _Frame, removed: float, samples: Tensor) -> tuple[Tensor, float]:
        position = frame.coordinates(samples)
        walk = algorithm.walk(frame.pull_back(self._energy(removed)), position, self.generator, curvature=1.0)
        accepted = 0.0
        for following in islice(walk, self.config.moves):
            accepted += float((following != position).any(1).double().mean()) / self.config.moves
            position = following
        return frame.theta(position), accepted

    def _energy(self, removed: float) -> Energy:
        retained = Potential(self.likelihood, self.retained)
        group = Potential(self.likelihood, self.group, with_prior=False)
        share = 1 - removed

        def energy(samples: Tensor) -> tuple[Tensor, Tensor]:
            values, gradients = retained.values(samples), retained.gradients(samples)
            if share == 0:
                return values, gradients
            return values + share * group.values(samples), gradients + share * group.gradients(samples)

        return energy

    def _move_by_minibatches(self, state: _Stage, samples: Tensor, algorithm: SGLD | SGHMC) -> _Stage:
        rows = len(self.retained) + len(self.group)
        passes = state.row_passes
        passes += self._check_cost(passes, self.config.row_passes(len(samples), rows))
        walk = algorithm.walk(self._minibatch_gradient(state.removed), samples, rows, self.generator)
        for samples in islice(walk, self.config.moves):
            if not bool(torch.isfinite(samples).all()):
                raise NumericalFailure(f"the moves explode: shorten the steps of {algorithm}")
        return replace(state, samples=samples, row_passes=passes)

    def _minibatch_gradient(self, removed: float) -> Callable[[Tensor], Tensor]:
        """Return an unbiased estimate of ∇U_τ of each draw, each on its own rows, in the precision of the rows."""
        rows = torch.cat([self.retained, self.group])
        shares = rows.new_ones(len(rows))
        shares[len(self.retained) :] = 1 - removed
        size = min(self.config.batch_size or len(rows), len(rows))

        def potential(theta: Tensor, batch: Tensor, share: Tensor) -> Tensor:
            misfit = -(share * self.likelihood.log_likelihood(theta, batch)).sum()
            return len(rows) / size * misfit - self.likelihood.log_prior(theta)

        at_once = 512 if self.likelihood.parameter_count <= _MAX_BATCHED_PARAMETERS else 1
        slope = vmap(grad(potential), chunk_size=at_once)

        def gradient(samples: Tensor) -> Tensor:
            chosen = torch.randint(len(rows), (len(samples), size), generator=self.generator).to(rows.device)
            estimate: Tensor = slope(samples.to(rows.dtype), rows[chosen], shares[chosen])
            return estimate.to(samples.dtype)

        return gradient

    def _check_cost(self, passes: int, further: int) -> int:
        if passes + further > self.config.max_row_passes:
            raise NumericalFailure(
                f"tempering takes more than {self.config.max_row_passes:.3g} row gradients: new chains are cheaper "
                "(rung retrain)"
            )
        return further


@dataclass(frozen=True, eq=False)
class _Frame:
    """Coordinates x with θ = centre + x·basis, in which the draws of every chain have mean 0 and width 1.

    The basis is a matrix, or a vector of widths where the draws are too few for their covariance.
    """

    centre: Tensor  # (T, p)
    basis: Tensor

    def theta(self, position: Tensor) -> Tensor:
        return self.centre + (position * self.basis if self.basis.ndim == 1 else position @ self.basis)

    def coordinates(self, samples: Tensor) -> Tensor:
        offset = samples - self.centre
        if self.basis.ndim == 1:
            return offset / self.basis
        position: Tensor = torch.linalg.solve_triangular(self.basis, offset, upper=True, left=False)
        return position

    def pull_back(self, energy: Energy) -> Energy:
        def pulled_back(position: Tensor) -> tuple[Tensor, Tensor]:
            values, gradients = energy(self.theta(position))
            return values, gradients * self.basis if self.basis.ndim == 1 else gradients @ self.basis.T

        return pulled_back


def _frame(state: _Stage, chain: Tensor) -> _Frame:
    """Return the frame of weighted draws: each chain around its own mean, so that no distance between modes enters."""
    weights, centre = torch.zeros_like(state.log_weights), torch.zeros_like(state.samples)
    numbers = sorted(set(chain.tolist()))
    for number in numbers:
        member = chain == number
        weights[member] = state.log_weights[member].softmax(0)
        centre[member] = weights[member] @ state.samples[member]
    offsets = (state.samples - centre) * (weights / len(numbers)).sqrt().unsqueeze(1)
    draws, parameters = offsets.shape
    if draws >= _DRAWS_PER_PARAMETER * parameters:
        factor, failed_at = torch.linalg.cholesky_ex(offsets.T @ offsets)
        if int(failed_at) == 0:
            return _Frame(centre, factor.T)
    widths = offsets.square().sum(0).sqrt()
    return _Frame(centre, widths.clamp(min=torch.finfo(widths.dtype).tiny))


def _largest_fraction(
    pull: Tensor, log_weights: Tensor, chain: Tensor, left: float, floor: float
) -> tuple[float, float]:
    """Return the largest δ ≤ left with weights log w + δ·pull of at least the floor in every chain, and their ESS.

    0 where the weights are worn already: then the stage only resamples and moves.
    """
    numbers = [chain == number for number in sorted(set(chain.tolist()))]

    def ess(fraction: float) -> float:
        weights = [(log_weights[member] + fraction * pull[member]).softmax(0) for member in numbers]
        return min(1 / (len(weight) * float(weight.dot(weight))) for weight in weights)

    if ess(left) >= floor:
        return left, ess(left)
    low, high = 0.0, left
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle) >= floor else (low, middle)
    return low, ess(low)


def _resample(log_weights: Tensor, chain: Tensor, generator: torch.Generator) -> Tensor:
    """Return positions of draws, each chain's picked systematically by their weights and kept in order."""
    chosen = torch.empty_like(chain)
    for number in sorted(set(chain.tolist())):
        positions = torch.nonzero(chain == number).flatten()
        heights = log_weights[positions].softmax(0).cumsum(0)
        offset = torch.rand((), generator=generator, device=generator.device, dtype=heights.dtype).to(heights.device)
        marks = (torch.arange(len(positions), device=heights.device) + offset) / len(positions)
        chosen[positions] = positions[torch.searchsorted(heights, marks).clamp(max=len(positions) - 1)]
    return chosen


def _conclude(state: _Stage, chain: Tensor, config: TemperConfig) -> Tempered:
    return Tempered(
        sample_set=SampleSet(state.samples, chain),
        stages=len(state.ess_path),
        ess_path=state.ess_path,
        row_passes=state.row_passes,
        acceptance=state.acceptance,
        ancestors=len(set(state.ancestor.tolist())),
        copies=len(chain) - len(torch.unique(state.samples, dim=0)),
        exact=config.exact,
    )
