"""Tilted energy of a network by minibatches: descent on it forgets, and does not go on with training.

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ        g = Σ_{z∈S'} ∇h(0, z)

Training ends where a slope is left, ∇F(0, S) = ∇F(0, R) + g. Descent on F(Δ, R) follows that slope too, which is no
row's influence. F̃ has it subtracted: its slope at Δ = 0 is -g, and with nothing removed it is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ml.forgetting.retained import retained_positions
from ml.models.network_energy import NetworkEnergy


@dataclass(frozen=True, eq=False)
class TiltedMinibatches(NetworkEnergy):
    """F̃ over the retained rows; the draws may include a part of Δ already. Only `estimate` is tilted."""

    tilt: Tensor = field(kw_only=True)

    def estimate(self, drift: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        return super().estimate(drift, batch_size, generator) - self.tilt.to(drift.dtype).dot(drift)


def tilt(energy: NetworkEnergy, drift: Tensor, forgotten: Tensor) -> TiltedMinibatches:
    """Return F̃ without the rows at positions `forgotten`, which may be none, around the draws moved by `drift`."""
    origin = torch.zeros_like(energy.draws[0])
    retained = energy.data[retained_positions(energy.data, forgotten)]
    every_row = torch.arange(len(retained), device=retained.device)
    slope = NetworkEnergy(energy.network, retained, energy.draws, energy.reads).gradient(origin, every_row)
    pull = energy.misfit_gradient(origin, forgotten)
    return TiltedMinibatches(energy.network, retained, energy.draws + drift, energy.reads, tilt=slope + pull)
