"""Stochastic gradient Langevin dynamics (Welling and Teh 2011), in the form of the BIF paper's preliminaries.

    θ_{t+1} = θ_t - ε_t ∇Ũ(θ_t) + N(0, 2ε_t)        ε_t = scale · t^(-power) / n,  t = 1, 2, ...

On a Gaussian of curvature λ, with exact gradients, θ is an autoregression of variance 1/(λ(1 - ελ/2)): stable only
for ελ < 2, and always too wide. If λ is known, noise N(0, 2ε(1 - ελ/2)) removes the excess (after Ahn, Korattikara and
Welling 2012: add only the noise that is missing). Minibatch gradients of size b add further noise of order ε n²/b,
which is not removed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.cyclical import Cyclical

Gradient = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class StepSize:
    """ε_t = scale · t^(-power) / n; power 0 is a constant step."""

    scale: float
    power: float

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise InvalidInput(f"scale of the step size is {self.scale}: pass a positive finite number")
        if not 0 <= self.power <= 1:
            raise InvalidInput(f"power of the step size is {self.power}: pass 0 (constant) to 1")

    def at(self, iteration: int, rows: int) -> float:
        return float(self.scale * iteration**-self.power / rows)

    def samples(self, iteration: int) -> bool:
        """Return whether an iterate may be a draw, as every one may."""
        return True


@dataclass(frozen=True)
class SGLD:
    step_size: StepSize | Cyclical

    def variance_inflation(self, iteration: int, rows: int, curvature: float) -> float:
        """Return the chain's variance in units of the target's, 1/λ; infinite where the chain is unstable."""
        excess = self.step_size.at(iteration, rows) * curvature / 2
        return 1 / (1 - excess) if excess < 1 else math.inf

    def walk(
        self, gradient: Gradient, start: Tensor, rows: int, generator: torch.Generator, curvature: float = 0.0
    ) -> Iterator[Tensor]:
        """Yield θ_1, θ_2, ... without end; each row of θ is a chain. With `curvature` 0 the noise is the paper's."""
        theta = start
        for iteration in itertools.count(1):
            epsilon = self.step_size.at(iteration, rows)
            gradients = gradient(theta)
            noise = normal(2 * epsilon / self.variance_inflation(iteration, rows, curvature), theta, generator)
            theta = step(theta, gradients, epsilon, noise)
            yield theta


def step(theta: Tensor, gradient: Tensor, step_size: float, noise: Tensor) -> Tensor:
    return theta - step_size * gradient + noise


def normal(variance: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from N(0, variance) on the generator's device, so that a seed gives the same draws on every device."""
    standard = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return math.sqrt(variance) * standard.to(like.device)
