"""Sample of the retained rows of a network: its curvature matrix, and the contribution of each row to it."""

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
    """Effect of a drift Δ on each row of the linearised network: p at Δ = 0, J·Δ, and ∇h(0)ᵀΔ."""

    p: Tensor
    logit_change: Tensor
    slope: Tensor

    def curvature(self, other: Tangent) -> Tensor:
        """Return ΔᵀJᵀ(diag p - ppᵀ)JΔ' of each row."""
        second_moment = (self.p * self.logit_change * other.logit_change).sum(1)
        return second_moment - (self.p * self.logit_change).sum(1) * (self.p * other.logit_change).sum(1)


@dataclass(frozen=True, eq=False)
class NetworkSample:
    """Rows that represent `total` rows. Each row is read by the same draw as in `NetworkEnergy`."""

    energy: NetworkEnergy
    rows: Tensor
    total: int

    def product(self, vector: Tensor) -> Tensor:
        """Return A·v, A = n/s Σ_s Jᵀ(diag p - ppᵀ)J + ∇²f at Δ = 0.

        The forward linearisation is not cached: tracing it for that many draws costs more than it saves.
        """
        total = torch.zeros_like(vector)
        for outputs, (pull_back, p) in zip(self._outputs, self._pull_backs, strict=True):
            _, change = _logits_and_change(outputs, self._origin, vector)
            total += pull_back(p * (change - (p * change).sum(1, keepdim=True)))[0]
        return self.total / len(self.rows) * total + vector / self.energy.network.prior_std**2

    def tangent(self, drift: Tensor) -> Tangent:
        parts = [_logits_and_change(outputs, self._origin, drift) for outputs in self._outputs]
        p = torch.cat([logits.softmax(1) for logits, _ in parts]).double()
        change = torch.cat([change for _, change in parts])
        slope = (p * change).sum(1) - change.gather(1, self._labels).squeeze(1)
        return Tangent(p, change.double(), slope.double())

    def misfits(self, drift: Tensor) -> Tensor:
        """Return h(Δ, z) of each row."""
        at = drift.to(self._origin.dtype)
        with torch.no_grad():
            logits = torch.cat([outputs(at) for outputs in self._outputs])
        return -self.energy.network.score(logits.double(), self._labels.squeeze(1))

    def bilinear_form(self, drift: Tensor, other: Tensor, curvatures: Tensor) -> float:
        """Return ΔᵀAΔ', given the curvature of each row."""
        return self.total * float(curvatures.mean()) + float(drift.dot(other)) / self.energy.network.prior_std**2

    def standard_error(self, values: Tensor) -> float:
        """Return the standard error of the sum over all rows, estimated from the sample; 0 if no row was left out."""
        unsampled_share = 1 - len(values) / self.total
        if unsampled_share <= 0:
            return 0.0
        return self.total * float(values.std()) * math.sqrt(unsampled_share / len(values))

    @functools.cached_property
    def misfits_before(self) -> Tensor:
        """h(0, z) of each row."""
        return self.misfits(self._origin)

    @functools.cached_property
    def _origin(self) -> Tensor:
        return torch.zeros_like(self.energy.draws[0], dtype=self.energy.data.dtype)

    @functools.cached_property
    def _rows_by_draw(self) -> list[tuple[int, Tensor]]:
        readers = self.rows % len(self.energy.draws)
        groups = ((draw, self.rows[readers == draw]) for draw in range(len(self.energy.draws)))
        return [(draw, rows) for draw, rows in groups if len(rows) > 0]

    @functools.cached_property
    def _labels(self) -> Tensor:
        return self.energy.data[torch.cat([rows for _, rows in self._rows_by_draw]), -1:].long()

    @functools.cached_property
    def _outputs(self) -> list[functools.partial[Tensor]]:
        """The logits of the rows of each draw, as functions of Δ."""
        return [functools.partial(self._logits, draw, rows) for draw, rows in self._rows_by_draw]

    @functools.cached_property
    def _pull_backs(self) -> list[tuple[Callable[[Tensor], tuple[Tensor]], Tensor]]:
        """The maps u ↦ Jᵀu and p, for each draw."""
        linearised = (vjp(outputs, self._origin) for outputs in self._outputs)
        return [(result[1], result[0].softmax(1)) for result in linearised]

    def _logits(self, draw: int, rows: Tensor, drift: Tensor) -> Tensor:
        return self.energy.network.outputs(self.energy.draws[draw].to(drift.dtype) + drift, self.energy.data[rows])


def _logits_and_change(outputs: functools.partial[Tensor], origin: Tensor, drift: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits at the origin, and J·Δ."""
    with warnings.catch_warnings():
        # Forward differentiation imports a part of torch that torch itself has deprecated.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        result = jvp(outputs, (origin,), (drift.to(origin.dtype),))
    return result[0], result[1]


def split_rows(retained: Tensor, size: int, held_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `size` random rows and `held_out` others. If there are too few rows, return all of them twice."""
    if len(retained) < size + held_out:
        return retained, retained
    order = torch.randperm(len(retained), generator=generator, device=generator.device).to(retained.device)
    return retained[order[:size]], retained[order[size : size + held_out]]
