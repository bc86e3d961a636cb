"""The tilted energy of a network itself, over the retained rows.

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ        g = Σ_{z∈S'} ∇h(0, z)

F, h and Δ are those of `ml.models.network_energy`, and S' are the forgotten rows. The slope of F̃ at Δ = 0 is -g: what
training left over of its slope is no row's influence. The rows of all draws are evaluated together, padded to equal
numbers, which is many times faster than draw by draw on small networks.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from ml.models.network_energy import NetworkEnergy

_OPERATIONS = 8  # roundings of a logit, as a factor on the precision
_INPUTS_AT_ONCE, _ROWS_AT_ONCE = 1 << 20, 1 << 14  # of one block, which bounds memory


@dataclass(frozen=True, eq=False)
class _Block:
    """Some draws, and as many rows for each: positions among the rows, and 0 where a draw has run out."""

    draws: Tensor  # (k,)
    positions: Tensor  # (k, l)
    weights: Tensor  # (k, l)


@dataclass(frozen=True, eq=False)
class TiltedEnergy:
    """F̃ over `rows`. `pull` is g."""

    energy: NetworkEnergy
    rows: Tensor
    pull: Tensor

    def rounding(self) -> float:
        """Return how far rounding may move the difference of two values of F̃, with errors of rows that add up."""
        precision = torch.finfo(self.energy.data.dtype).eps
        return _OPERATIONS * precision * self._misfit(torch.zeros_like(self.pull))

    def value(self, drift: Tensor) -> float:
        misfit = self._misfit(drift)
        return misfit + self.energy.prior_energy(drift) - float(self._slope.dot(drift))

    def gradient(self, drift: Tensor) -> Tensor:
        return self.value_and_gradient(drift)[1]

    def value_and_gradient(self, drift: Tensor) -> tuple[float, Tensor]:
        misfit, slope = self._misfit_and_slope(drift)
        value = misfit + self.energy.prior_energy(drift) - float(self._slope.dot(drift))
        return value, slope + self.energy.prior_gradient(drift) - self._slope

    def curvature(self, drift: Tensor) -> Callable[[Tensor], Tensor]:
        """Return v ↦ Av, A = Σ Jᵀ(diag p - ppᵀ)J + ∇²f the Gauss-Newton matrix at Δ."""
        at = drift.to(self.energy.data.dtype)
        outputs = [functools.partial(self._logits, block) for block in self._blocks]
        pull_backs = [_pull_back(part, at) for part in outputs]

        def product(vector: Tensor) -> Tensor:
            total, direction = torch.zeros_like(vector), vector.to(at.dtype)
            for block, part, (pull_back, p) in zip(self._blocks, outputs, pull_backs, strict=True):
                change = _change(part, at, direction)
                centred = change - (p * change).sum(2, keepdim=True)
                total += pull_back(block.weights.unsqueeze(2) * p * centred)[0]
            return total + vector / self.energy.network.prior_std**2

        return product

    @functools.cached_property
    def _slope(self) -> Tensor:
        origin = torch.zeros_like(self.pull)
        return self._misfit_and_slope(origin)[1] + self.energy.prior_gradient(origin) + self.pull

    def _misfit(self, drift: Tensor) -> float:
        with torch.no_grad():
            return sum(float(self._misfits(block, drift).double().sum()) for block in self._blocks)

    def _misfit_and_slope(self, drift: Tensor) -> tuple[float, Tensor]:
        """Return Σ h(Δ, z) and its gradient."""
        at, slope, misfit = drift.to(self.energy.data.dtype, copy=True).requires_grad_(), torch.zeros_like(drift), 0.0
        for block in self._blocks:
            misfits = self._misfits(block, at)
            misfit += float(misfits.detach().double().sum())
            slope += torch.autograd.grad(misfits.sum(), at)[0]
        return misfit, slope

    def _misfits(self, block: _Block, drift: Tensor) -> Tensor:
        logits = self._logits(block, drift.to(self.energy.data.dtype))
        labels = self.energy.data[self.rows[block.positions], -1:].long()
        return -block.weights * logits.log_softmax(2).gather(2, labels).squeeze(2)

    def _logits(self, block: _Block, drift: Tensor) -> Tensor:
        thetas = self.energy.draws[block.draws].to(drift.dtype) + drift
        return vmap(self.energy.network.outputs)(thetas, self.energy.data[self.rows[block.positions]])

    @functools.cached_property
    def _blocks(self) -> list[_Block]:
        return list(self._split())

    def _split(self) -> Iterator[_Block]:
        energy, device = self.energy, self.rows.device
        classes = self.rows % energy.stride
        own = [torch.nonzero(classes == residue).flatten() for residue in range(energy.stride)]
        longest = max(len(positions) for positions in own)
        padded = torch.stack([torch.cat([part, part.new_zeros(longest - len(part))]) for part in own])
        lengths = torch.tensor([len(part) for part in own], device=device).unsqueeze(1)
        weights = (torch.arange(longest, device=device) < lengths).to(energy.data.dtype) / energy.reads
        draws = torch.arange(len(energy.draws), device=device)
        residues = draws % energy.stride
        at_once = min(_ROWS_AT_ONCE, _INPUTS_AT_ONCE // math.prod(energy.network.input_shape))
        columns = max(1, at_once // len(draws))
        for part in torch.split(torch.arange(longest, device=device), columns):
            yield _Block(draws, padded[residues][:, part], weights[residues][:, part])


def _pull_back(outputs: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Callable[[Tensor], tuple[Tensor]], Tensor]:
    """Return u ↦ Jᵀu and p."""
    linearised = vjp(outputs, at)
    return linearised[1], linearised[0].softmax(2)


def _change(function: Callable[[Tensor], Tensor], at: Tensor, direction: Tensor) -> Tensor:
    """Return J·v."""
    with warnings.catch_warnings():
        # Forward differentiation imports a part of torch that torch itself has deprecated.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        change: Tensor = jvp(function, (at,), (direction,))[1]
    return change
