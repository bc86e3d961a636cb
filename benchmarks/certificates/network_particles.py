"""Posteriors of tiny networks, drawn exactly: what certificates of their sample sets are compared with.

Particles start as draws of the prior. The likelihood is raised to powers from 0 to 1; at each they are resampled and
moved by Hamiltonian Monte Carlo (P. Del Moral, A. Doucet, A. Jasra, 2006). So all modes are found, with their masses,
up to an error that falls as one over the root of their number. Chains that start at such particles are stationary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet

_KEPT_SHARE = 0.7  # effective particles that a rise of the power leaves
_MOVES = 6  # at each power
_STEPS = 12  # of a trajectory
_TARGET = 0.8  # share of accepted trajectories

_Energies = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Hamiltonian Monte Carlo for p(θ) p(rows | θ)^power, many chains at once."""

    network: Network
    rows: Tensor
    power: float

    def energies(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        at = theta.detach().requires_grad_()
        values = vmap(self._energy)(at)
        return values.detach(), torch.autograd.grad(values.sum(), at)[0]

    def move(self, theta: Tensor, step: float, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return the chains after one trajectory, and the share that moved."""
        momentum = _normal(theta.shape, generator)
        value, gradient = self.energies(theta)
        before, position = value + momentum.square().sum(1) / 2, theta
        length = step * (0.8 + 0.4 * float(torch.rand((), generator=generator)))
        for _ in range(_STEPS):
            momentum = momentum - length / 2 * gradient
            position = position + length * momentum
            value, gradient = self.energies(position)
            momentum = momentum - length / 2 * gradient
        rise = value + momentum.square().sum(1) / 2 - before
        moved = torch.rand(len(theta), generator=generator, dtype=torch.float64).log() < -rise
        return torch.where(moved.unsqueeze(1), position, theta), float(moved.double().mean())

    def _energy(self, theta: Tensor) -> Tensor:
        return -self.power * self.network.log_likelihood(theta, self.rows).sum() - self.network.log_prior(theta)


def draw_particles(network: Network, rows: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Return draws of the posterior, and the step at which its trajectories are accepted."""
    particles = network.prior_std * _normal((count, network.parameter_count), generator)
    power, step = 0.0, 0.1 * network.prior_std
    while power < 1:
        scores = vmap(lambda theta: network.log_likelihood(theta, rows).sum())(particles)
        power, weights = _raise_power(scores, power)
        particles = particles[torch.multinomial(weights, count, replacement=True, generator=generator)]
        sampler = Sampler(network, rows, power)
        for _ in range(_MOVES):
            particles, accepted = sampler.move(particles, step, generator)
            step *= math.exp(accepted - _TARGET)
    return particles, step


def run_chains(
    network: Network, rows: Tensor, starts: Tensor, length: int, thinning: int, step: float, generator: torch.Generator
) -> SampleSet:
    """Run a chain from each start, and keep every `thinning`-th position."""
    sampler, position, kept = Sampler(network, rows, 1.0), starts, []
    for iteration in range(length * thinning):
        position, _ = sampler.move(position, step, generator)
        if (iteration + 1) % thinning == 0:
            kept.append(position)
    return SampleSet(torch.stack(kept, 1).flatten(0, 1), torch.arange(len(starts)).repeat_interleave(length))


def _raise_power(scores: Tensor, power: float) -> tuple[float, Tensor]:
    """Return the largest power at which enough particles stay effective, by bisection, and their weights."""

    def weights(higher: float) -> Tensor:
        return ((higher - power) * scores).softmax(0)

    low, high = power, 1.0
    if 1 / float(weights(1.0).square().sum()) >= _KEPT_SHARE * len(scores):
        return 1.0, weights(1.0)
    for _ in range(40):
        middle = (low + high) / 2
        enough = 1 / float(weights(middle).square().sum()) >= _KEPT_SHARE * len(scores)
        low, high = (middle, high) if enough else (low, middle)
    return low, weights(low)


def _normal(shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
