"""Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014), as in the BIF paper's preliminaries.

    θ_{t+1} = θ_t + v_t
    v_{t+1} = (1 - α_t) v_t - η_t ∇Ũ(θ_t) + N(0, 2 α_t η_t)        v_0 ~ N(0, η_0)
    η_t = scale · t^(-power) / n,   α_t = α_0 √(η_t / η_0)         (η decays by c, α by √c)

The gradient is taken before θ moves, so a step adds energy. With k = ηλ on a Gaussian of curvature λ, and with exact
gradients, the variance of θ is (1/λ) · α(2 - α + k) / ((α - k)(2 - α + k/2)), stable only for k < α. If λ is
known, noise smaller by that factor makes the variance exact.

`symplectic` takes the gradient where θ has moved to, ∇Ũ(θ_{t+1}), as Chen, Fox and Guestrin do. The variance is then
(1/λ) / (1 - k / (2(2 - α))), stable for k < 2(2 - α), so the friction can be low. Directions of little curvature relax
at the rate ηλ/α, while minibatches of b rows heat by η n²/(2αb) times the variance of a row's gradient: a large η/α
travels far and is hot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.cyclical import Cyclical
from ml.inference.sgld import Gradient, StepSize, normal


@dataclass(frozen=True, eq=False)
class Motion:
    """Position and velocity of the chains."""

    theta: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class SGHMC:
    step_size: StepSize | Cyclical
    friction: float  # α_0
    symplectic: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.friction < 1:
            raise InvalidInput(f"friction is {self.friction}: pass a number between 0 and 1, such as 0.4")

    def friction_at(self, iteration: int) -> float:
        return self.friction * math.sqrt(self.step_size.at(iteration, 1) / self.step_size.at(1, 1))

    def variance_inflation(self, iteration: int, rows: int, curvature: float) -> float:
        """Return the chain's variance in units of the target's, 1/λ; infinite where the chain is unstable."""
        a, k = self.friction_at(iteration), self.step_size.at(iteration, rows) * curvature
        if self.symplectic:
            return 1 / (1 - k / (2 * (2 - a))) if k < 2 * (2 - a) else math.inf
        return a * (2 - a + k) / ((a - k) * (2 - a + k / 2)) if k < a else math.inf

    def walk(
        self, gradient: Gradient, start: Tensor, rows: int, generator: torch.Generator, curvature: float = 0.0
    ) -> Iterator[Tensor]:
        """Yield θ_1, θ_2, ... without end; each row of θ is a chain. With `curvature` 0 the noise is the paper's."""
        motion = Motion(start, normal(self.step_size.at(1, rows), start, generator))
        for iteration in itertools.count(1):
            eta, alpha = self.step_size.at(iteration, rows), self.friction_at(iteration)
            gradients = gradient(motion.theta + motion.velocity if self.symplectic else motion.theta)
            noise = normal(2 * alpha * eta / self.variance_inflation(iteration, rows, curvature), start, generator)
            motion = step(motion, gradients, eta, alpha, noise)
            yield motion.theta


def step(motion: Motion, gradient: Tensor, step_size: float, friction: float, noise: Tensor) -> Motion:
    velocity = (1 - friction) * motion.velocity - step_size * gradient + noise
    return Motion(motion.theta + motion.velocity, velocity)
