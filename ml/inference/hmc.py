"""Hamiltonian Monte Carlo on all rows, with steps that are exact on a Gaussian (after A. Beskos et al. 2011).

In coordinates where the posterior has curvature λ in every direction near its mode, U(θ) = λ|θ|²/2 + W(θ), and W is
small. With x = √λ θ and a fresh momentum r ~ N(0, I), a trajectory is `steps` repetitions of

    r ← r - (δ/2) ∇_x W        (x, r) ← (x cos δ + r sin δ, r cos δ - x sin δ)        r ← r - (δ/2) ∇_x W

and its end is accepted with the probability min(1, e^(H - H')), H = U + |r|²/2; else θ stays. So the draws are of
e^(-U) itself, whatever the steps. On a Gaussian W is 0 and every end is accepted, in any number of dimensions. All
steps together make about a quarter turn, steps·δ = π/2, after which a Gaussian has forgotten its start. The turn varies
by a fifth from one trajectory to the next, so that no direction comes back to where it was each time.

During the first `tuning` iterations the number of steps doubles while fewer than 60 % of the ends can be expected to be
accepted. They belong into the burn-in, as a chain that adapts has another law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.sgld import normal

_TRIED = 10  # iterations between two changes of the steps
_MIN_ACCEPTED = 0.6
_MAX_STEPS = 128
TURN, _TURN_VARIATION = math.pi / 2, 0.2

Energy = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns U of each chain, (chains,), and ∇U, (chains, p)."""


@dataclass(frozen=True, eq=False)
class Phase:
    """Position x and momentum r of the chains, in units of the posterior's width, with U and ∇_x U at x."""

    x: Tensor
    momentum: Tensor
    value: Tensor
    gradient: Tensor

    @property
    def hamiltonian(self) -> Tensor:
        return self.value + self.momentum.square().sum(1) / 2


@dataclass(frozen=True)
class HMC:
    steps: int
    tuning: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tuning < 0:
            raise InvalidInput(f"{self}: pass at least 1 step, and a tuning of at least 0 iterations")

    @property
    def angle(self) -> float:
        """Mean angle of a step before tuning."""
        return TURN / self.steps

    def walk(self, energy: Energy, start: Tensor, generator: torch.Generator, curvature: float) -> Iterator[Tensor]:
        """Yield θ_1, θ_2, ... without end; each row of θ is a chain. `curvature` is λ."""
        unit, steps, accepted = math.sqrt(curvature), self.steps, 0.0
        scaled = in_units(energy, unit)
        phase = Phase(unit * start, torch.zeros_like(start), *scaled(unit * start))
        for iteration in itertools.count(1):
            phase, probabilities = iterate(scaled, phase, steps, generator)
            accepted += float(probabilities.mean()) / _TRIED
            if iteration <= self.tuning and iteration % _TRIED == 0:
                steps = min(_MAX_STEPS, 2 * steps) if accepted < _MIN_ACCEPTED else steps
                accepted = 0.0
            yield phase.x / unit


def in_units(energy: Energy, unit: float) -> Energy:
    """Return U and ∇_x U as a function of x = unit·θ."""

    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = energy(x / unit)
        return values, gradients / unit

    return scaled


def iterate(energy: Energy, phase: Phase, steps: int, generator: torch.Generator) -> tuple[Phase, Tensor]:
    """Return the next phase, and each chain's probability of having moved."""
    started = Phase(phase.x, normal(1.0, phase.x, generator), phase.value, phase.gradient)
    chances = torch.rand(1 + len(phase.x), generator=generator, device=generator.device, dtype=phase.x.dtype)
    turn = TURN * (1 + _TURN_VARIATION * (2 * float(chances[0]) - 1))
    ended = started
    for _ in range(steps):
        ended = step(energy, ended, turn / steps)
    probabilities = (started.hamiltonian - ended.hamiltonian).exp().clamp(max=1).nan_to_num(nan=0.0)
    return _merge(chances[1:].to(phase.x.device) < probabilities, ended, started), probabilities


def step(energy: Energy, phase: Phase, angle: float) -> Phase:
    """Kick, turn and kick."""
    momentum = phase.momentum - angle / 2 * (phase.gradient - phase.x)
    x = math.cos(angle) * phase.x + math.sin(angle) * momentum
    turned = math.cos(angle) * momentum - math.sin(angle) * phase.x
    value, gradient = energy(x)
    return Phase(x, turned - angle / 2 * (gradient - x), value, gradient)


def _merge(accepts: Tensor, ended: Phase, started: Phase) -> Phase:
    rows = accepts.unsqueeze(1)
    return Phase(
        torch.where(rows, ended.x, started.x),
        started.momentum,
        torch.where(accepts, ended.value, started.value),
        torch.where(rows, ended.gradient, started.gradient),
    )
