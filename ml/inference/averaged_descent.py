"""Bringing a trained network to rest: averaged descent on the frozen energy of its posterior's means.

Minibatches keep a network trembling around its minimum, and the gradient left over is larger than that of the rows
somebody wants forgotten. On a frozen energy (`ml.models.network_energy`) the minimum is one point. Adam walks around it
at a constant rate, and the mean of its path (B. Polyak and A. Juditsky, 1992) lies much nearer to it than any step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.models.network_energy import NetworkEnergy
from ml.models.regression import check_count, check_scale

OnStep = Callable[[int], None]


@dataclass(frozen=True)
class Settling:
    """The last `averaged` of the iterations make the mean."""

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


SAFE_SETTLING = Settling()


def settle(
    energy: NetworkEnergy,
    generator: torch.Generator,
    config: Settling = SAFE_SETTLING,
    on_step: OnStep | None = None,
) -> Tensor:
    """The drift of the draws to a place where F over all rows has hardly any slope."""
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
        raise NumericalFailure("settling left the finite numbers: lower the learning rate")
    return mean
