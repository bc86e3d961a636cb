"""What Newton-Kantorovich (`ml.certify.kantorovich`) says of a network, with constants that are sampled.

In units of the widths, u = Δ/σ, at the processed drift:

    m   of the linearised network's curvature: Lanczos' lower bound of λ_min, or what the prior gives if that is more
    L   the largest ‖∇F(u + tv) - 2∇F(u) + ∇F(u - tv)‖/t² over a few directions v, at t = 2η, the radius of the ball
    k   Lη/m

The largest of a few is no more than the supremum. So k ≥ ½ says that the theorem gives nothing here, which no further
sampling changes; k < ½ is a sign that it might, and no proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.models.network_energy import NetworkEnergy
from ml.solvers.lanczos import least_eigenvalue

_LANCZOS_STEPS = 20
_CONFIDENCE = 0.99
_DIRECTIONS = 2  # beside the way to the minimum


@dataclass(frozen=True)
class Theorem:
    """In units of the widths."""

    lambda_min: float
    lipschitz: float
    kantorovich: float


def sampled_theorem(
    energy: NetworkEnergy,
    std: Tensor,
    rows: Tensor,
    total: int,
    drift: Tensor,
    missing: Tensor,
    generator: torch.Generator,
) -> Theorem:
    """At `drift`, from which the minimum is `missing` away, by `rows` that stand for `total` ones."""
    lambda_min = least_curvature(energy, std, rows, total, generator)
    eta = float((missing / std).norm())
    if eta == 0:
        return Theorem(lambda_min, 0.0, 0.0)
    drawn = torch.randn(_DIRECTIONS, len(std), generator=generator, dtype=std.dtype, device=generator.device)
    directions = torch.cat([(missing / std).unsqueeze(0), drawn.to(std.device)])

    def slope(at: Tensor) -> Tensor:
        return total / len(rows) * std * energy.misfit_gradient(at, rows)  # the prior's is linear

    here, far = slope(drift), 2 * eta
    steps = [far * std * direction / direction.norm() for direction in directions]
    lipschitz = max(float((slope(drift + step) - 2 * here + slope(drift - step)).norm()) for step in steps) / far**2
    return Theorem(lambda_min, lipschitz, lipschitz * eta / lambda_min)


def least_curvature(energy: NetworkEnergy, std: Tensor, rows: Tensor, total: int, generator: torch.Generator) -> float:
    """m at Δ = 0."""
    curvature = energy.curvature(rows, total / len(rows))
    found = least_eigenvalue(
        lambda vector: std * curvature(std * vector), len(std), _LANCZOS_STEPS, _CONFIDENCE, generator
    )
    return max(found.lower_bound, float((std / energy.network.prior_std).square().min()))
