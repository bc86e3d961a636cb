"""Averaged descent: brings the means of a trained network to a minimum of their frozen-noise energy.

Minibatch noise keeps a network moving around its minimum, with a remaining gradient larger than that of the rows to
forget. A frozen energy (`ml.models.network_energy`) has a single minimum. Adam at a constant rate moves around it, and
the mean of its iterates (B. Polyak and A. Juditsky, 1992) lies much nearer to it than any single iterate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.models.checks import check_count, check_scale
from ml.models.network_energy import NetworkEnergy

OnStep = Callable[[int], None]


@dataclass(frozen=True)
class AveragedDescent:
    """Configuration of averaged descent. The mean is taken over the last `averaged` iterations."""

    iterations: int = 1_500
    averaged: int = 1_000
    batch_size: int = 128
    learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("iterations", "averaged", "batch_size"):
            check_count(name, getattr(self, name))
        check_scale("learning_rate", self.learning_rate)
        if self.averaged > self.iterations:
            raise InvalidInput(f"averaged is {self.averaged} of {self.iterations} iterations: pass at most as many")


SAFE_AVERAGED_DESCENT = AveragedDescent()


def average_descent(
    energy: NetworkEnergy,
    generator: torch.Generator,
    config: AveragedDescent = SAFE_AVERAGED_DESCENT,
    on_step: OnStep | None = None,
) -> Tensor:
    """Return the drift of the draws at which the gradient of F over all rows nearly vanishes."""
    drift = torch.zeros_like(energy.draws[0], dtype=energy.data.dtype).requires_grad_()
    optimiser = torch.optim.Adam([drift], lr=config.learning_rate)
    mean = torch.zeros_like(energy.draws[0])
    for iteration in range(1, config.iterations + 1):
        optimiser.zero_grad()
        (energy.estimate(drift, config.batch_size, generator) / len(energy.data)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if iteration > config.iterations - config.averaged:
            mean += drift.detach() / config.averaged
        if on_step is not None:
            on_step(iteration)
    if not bool(torch.isfinite(mean).all()):
        raise NumericalFailure("averaged descent diverged: lower the learning rate")
    return mean
