"""Hamiltonian Monte Carlo in units of the prior: draws of a network's posterior itself, without its Hessian.

If every parameter has the prior N(0, s²), then x = θ/s has U = |x|²/2 + W(x), W = -Σ_i log p(z_i | θ): the split of
`ml.inference.hmc` with λ = 1/s². The turn follows the prior exactly, and only the misfit W kicks. A network leaves most
directions to the prior, so a quarter turn forgets most of them, in as many steps as the stiffest directions of W need:
about √(1 + s²‖∇²W‖). Each step reads every row once. Any other s gives draws of the same posterior, only more slowly.

During the first `tuning` iterations the angle δ of a step is tuned by dual averaging (M. Hoffman and A. Gelman 2014):
with a_k the mean probability at which iteration k was accepted, and a* the one to reach,

    log δ_{k+1} = log δ_1 - (√k / γ) · (1/(k + k₀)) Σ_{i≤k} (a* - a_i)        γ = 1/4,  k₀ = 10

and from then on its angle is the mean of all log δ_k, the later ones with more weight: Λ_k = k^(-κ) log δ_k +
(1 - k^(-κ)) Λ_{k-1}, κ = 3/4. Tuning belongs into the burn-in, as a chain that adapts has another law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.hmc import TURN, Energy, Phase, in_units, iterate
from ml.models.checks import check_scale

_ACCEPTANCE = 0.8  # a*: fewer accepted waste trajectories, more waste steps
_GAMMA, _DELAY, _KAPPA = 0.25, 10, 0.75
_MAX_STEPS = 512


@dataclass(frozen=True)
class Tuning:
    """State of dual averaging after k iterations: Σ (a* - a_i), log δ of the next iteration, and the mean Λ."""

    initial: float
    count: int = 0
    shortfall: float = 0.0
    log_angle: float = 0.0
    mean: float = 0.0

    @classmethod
    def start(cls, angle: float) -> Tuning:
        return cls(math.log(angle), log_angle=math.log(angle))

    def update(self, acceptance: float) -> Tuning:
        count, shortfall = self.count + 1, self.shortfall + _ACCEPTANCE - acceptance
        weight = count**-_KAPPA
        mean = weight * self.log_angle + (1 - weight) * self.mean
        log_angle = self.initial - math.sqrt(count) / _GAMMA * shortfall / (count + _DELAY)
        return Tuning(self.initial, count, shortfall, log_angle, mean)


@dataclass(frozen=True)
class PriorHMC:
    """Configuration: `scale` is s, the prior's standard deviation, and `steps` a trajectory's before tuning."""

    scale: float
    steps: int
    tuning: int

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        if self.steps < 1 or self.tuning < 1:
            raise InvalidInput(f"{self}: pass at least 1 step, and a tuning of at least 1 iteration")

    @property
    def angle(self) -> float:
        """Mean angle of a step before tuning."""
        return TURN / self.steps

    def walk(self, energy: Energy, start: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield θ_1, θ_2, ... without end; each row of θ is a chain."""
        scaled, tuning = in_units(energy, 1 / self.scale), Tuning.start(self.angle)
        phase = Phase(start / self.scale, torch.zeros_like(start), *scaled(start / self.scale))
        for iteration in itertools.count(1):
            log_angle = tuning.log_angle if iteration <= self.tuning else tuning.mean
            phase, probabilities = iterate(scaled, phase, _steps(log_angle), generator)
            if iteration <= self.tuning:
                tuning = tuning.update(float(probabilities.mean()))
            yield phase.x * self.scale


def _steps(log_angle: float) -> int:
    return min(_MAX_STEPS, math.ceil(TURN * math.exp(-log_angle)))
