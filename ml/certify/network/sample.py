"""A sample of the retained rows of a network: the curvature on them, and how each row takes part in it."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp, vjp

from ml.models.network_energy import NetworkEnergy


@dataclass(frozen=True, eq=False)
class Tangent:
    """What a drift Δ does to each row of the linearised network: p at Δ = 0, J·Δ, and ∇h(0)ᵀΔ."""

    p: Tensor
    moved: Tensor
    slope: Tensor

    def curved(self, other: Tangent) -> Tensor:
        """ΔᵀJᵀ(diag p - ppᵀ)JΔ' of each row."""
        mixed = (self.p * self.moved * other.moved).sum(1)
        return mixed - (self.p * self.moved).sum(1) * (self.p * other.moved).sum(1)


@dataclass(frozen=True, eq=False)
class NetworkSample:
    """Rows that stand for `total` ones. Draws and rows go together as in `NetworkEnergy`."""

    energy: NetworkEnergy
    rows: Tensor
    total: int

    def product(self, vector: Tensor) -> Tensor:
        """A·v, A = n/s Σ_s Jᵀ(diag p - ppᵀ)J + ∇²f at Δ = 0.

        Forwards, the network is not linearised once for all: to trace it for so many draws costs more than it spares.
        """
        total = torch.zeros_like(vector)
        for outputs, (back, p) in zip(self._outputs, self._backwards, strict=True):
            _, moved = _along(outputs, self._origin, vector)
            total += back(p * (moved - (p * moved).sum(1, keepdim=True)))[0]
        return self.total / len(self.rows) * total + vector / self.energy.network.prior_std**2

    def tangent(self, drift: Tensor) -> Tangent:
        parts = [_along(outputs, self._origin, drift) for outputs in self._outputs]
        p, moved = torch.cat([part[0].softmax(1) for part in parts]).double(), torch.cat([part[1] for part in parts])
        return Tangent(p, moved.double(), ((p * moved).sum(1) - moved.gather(1, self._labels).squeeze(1)).double())

    def misfits(self, drift: Tensor) -> Tensor:
        """h(Δ, z) of each row."""
        at = drift.to(self._origin.dtype)
        with torch.no_grad():
            logits = torch.cat([outputs(at) for outputs in self._outputs])
        return -self.energy.network.score(logits.double(), self._labels.squeeze(1))

    def form(self, one: Tensor, other: Tensor, curved: Tensor) -> float:
        """ΔᵀAΔ', given the part of each row."""
        return self.total * float(curved.mean()) + float(one.dot(other)) / self.energy.network.prior_std**2

    def standard_error(self, values: Tensor) -> float:
        """Of the sum over all rows, by that over the sample; 0 where no row was left out."""
        missing = 1 - len(values) / self.total
        return self.total * float(values.std()) * math.sqrt(missing / len(values)) if missing > 0 else 0.0

    @functools.cached_property
    def misfits_before(self) -> Tensor:
        """h(0, z) of each row."""
        return self.misfits(self._origin)

    @functools.cached_property
    def _origin(self) -> Tensor:
        return torch.zeros_like(self.energy.draws[0], dtype=self.energy.data.dtype)

    @functools.cached_property
    def _by_reader(self) -> list[tuple[int, Tensor]]:
        readers = self.rows % len(self.energy.draws)
        drawn = ((draw, self.rows[readers == draw]) for draw in range(len(self.energy.draws)))
        return [(draw, rows) for draw, rows in drawn if len(rows) > 0]

    @functools.cached_property
    def _labels(self) -> Tensor:
        return self.energy.data[torch.cat([rows for _, rows in self._by_reader]), -1:].long()

    @functools.cached_property
    def _outputs(self) -> list[functools.partial[Tensor]]:
        """The logits of the rows of each reader, as functions of Δ."""
        return [functools.partial(self._logits, draw, rows) for draw, rows in self._by_reader]

    @functools.cached_property
    def _backwards(self) -> list[tuple[Callable[[Tensor], tuple[Tensor]], Tensor]]:
        """u ↦ Jᵀu and p, for each reader."""
        found = (vjp(outputs, self._origin) for outputs in self._outputs)
        return [(one[1], one[0].softmax(1)) for one in found]

    def _logits(self, draw: int, rows: Tensor, drift: Tensor) -> Tensor:
        return self.energy.network.outputs(self.energy.draws[draw].to(drift.dtype) + drift, self.energy.data[rows])


def _along(outputs: functools.partial[Tensor], origin: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """The logits, and J·Δ."""
    with warnings.catch_warnings():
        # Forward differentiation loads what torch itself deprecates.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        found = jvp(outputs, (origin,), (drift.to(origin.dtype),))
    return found[0], found[1]


def split_rows(retained: Tensor, size: int, others: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many rows, and so many others; all of them twice, if there are no more."""
    if len(retained) < size + others:
        return retained, retained
    order = torch.randperm(len(retained), generator=generator, device=generator.device).to(retained.device)
    return retained[order[:size]], retained[order[size : size + others]]
