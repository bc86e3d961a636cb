"""Truth for certificates of small networks: the network's own excess over the minimum that descent reaches.

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ        truth = F̃(Δ⁻) - min F̃

F is the energy of all retained rows under the certificate's frozen noise, in float64, as a function of the means. It is
minimised by torch's own L-BFGS, with no Gauss-Newton matrix, no linearised network and no code of the certificate, from
Δ⁻, from the posterior before, and from a random point as far from Δ⁻ as the minimum found from there. The lowest
counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from ml.models.network import Network

_ITERATIONS, _ITERATIONS_ELSEWHERE = 200, 80

Energy = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class FrozenNoise:
    """Draws of the posterior before, and by how many of them each row is read."""

    draws: Tensor
    reads: int

    def energy(self, network: Network, data: Tensor, rows: Tensor) -> Energy:
        """Return Δ ↦ F(Δ) over these rows, each read by the draws with the same position modulo M/r."""
        stride = len(self.draws) // self.reads
        rows_by_class = [rows[rows % stride == residue] for residue in range(stride)]
        longest = max(len(members) for members in rows_by_class)
        padded = torch.stack([torch.cat([part, part.new_zeros(longest - len(part))]) for part in rows_by_class])
        counts = torch.stack([(torch.arange(longest) < len(members)).double() for members in rows_by_class])
        classes = torch.arange(len(self.draws)) % stride
        read, weights = data[padded[classes]].double(), counts[classes] / self.reads

        def energy(drift: Tensor) -> Tensor:
            logits = vmap(network.outputs)(self.draws + drift, read)
            scores = logits.log_softmax(2).gather(2, read[:, :, -1:].long()).squeeze(2)
            prior = (self.draws + drift).square().sum(1).mean() / (2 * network.prior_std**2)
            return prior - (weights * scores).sum()

        return energy


def own_excess(
    network: Network, data: Tensor, noise: FrozenNoise, forgotten: Tensor, drift: Tensor, generator: torch.Generator
) -> float:
    """Return F̃(Δ⁻) - min F̃ for the drift Δ⁻ of a processed posterior."""
    kept = torch.ones(len(data), dtype=torch.bool)
    kept[forgotten] = False
    origin = torch.zeros_like(drift)
    slope = gradient_of(noise.energy(network, data, torch.arange(len(data))), origin)
    retained = noise.energy(network, data, torch.nonzero(kept).flatten())

    def tilted(at: Tensor) -> Tensor:
        return retained(at) - slope.dot(at)

    nearest, lowest = minimise(tilted, drift)
    direction = torch.randn(len(drift), generator=generator, dtype=torch.float64) * noise.draws.std(0)
    elsewhere = drift + (nearest - drift).norm() / direction.norm() * direction
    others = [minimise(tilted, start, _ITERATIONS_ELSEWHERE)[1] for start in (origin, elsewhere)]
    return float(tilted(drift)) - min(lowest, *others)


def gradient_of(energy: Energy, at: Tensor) -> Tensor:
    point = at.clone().requires_grad_()
    return torch.autograd.grad(energy(point), point)[0]


def minimise(energy: Energy, start: Tensor, iterations: int = _ITERATIONS) -> tuple[Tensor, float]:
    """Return the lowest point that L-BFGS visits, and its energy."""
    point = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [point],
        max_iter=iterations,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        history_size=30,
        line_search_fn="strong_wolfe",
    )
    lowest = [(math.inf, start)]

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = energy(point)
        value.backward()  # type: ignore[no-untyped-call]
        if value.item() < lowest[0][0]:
            lowest[0] = (value.item(), point.detach().clone())
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return lowest[0][1], lowest[0][0]
