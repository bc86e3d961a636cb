"""Constants of the Newton-Kantorovich theorem (`ml.certify.kantorovich`) for a network, estimated by sampling.

In units of the widths, u = Δ/σ, at the processed drift:

    m   lower bound of λ_min of the linearised network's curvature: by Lanczos, or the prior's share if that is larger
    L   largest ‖∇F(u + tv) - 2∇F(u) + ∇F(u - tv)‖/t² over a few directions v, at t = 2η, the radius of the ball
    k   Lη/m

The maximum over a few directions is at most the supremum. k ≥ ½ therefore shows that the theorem does not apply, and
more sampling cannot change that; k < ½ indicates that it might apply, but proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.models.network_energy import NetworkEnergy
from ml.solvers.lanczos import smallest_eigenvalue

_LANCZOS_STEPS = 20
_CONFIDENCE = 0.99
_RANDOM_DIRECTIONS = 2  # in addition to the direction of the minimum


@dataclass(frozen=True)
class SampledConstants:
    """m, L and k in units of the widths."""

    lambda_min: float
    lipschitz: float
    kantorovich: float


def sample_constants(
    energy: NetworkEnergy,
    std: Tensor,
    rows: Tensor,
    total: int,
    drift: Tensor,
    gap: Tensor,
    generator: torch.Generator,
) -> SampledConstants:
    """Estimate the constants at `drift`, with the minimum at `drift + gap`, from `rows` that represent `total` rows."""
    lambda_min = least_curvature(energy, std, rows, total, generator)
    eta = float((gap / std).norm())
    if eta == 0:
        return SampledConstants(lambda_min, 0.0, 0.0)
    noise = torch.randn(_RANDOM_DIRECTIONS, len(std), generator=generator, dtype=std.dtype, device=generator.device)
    directions = torch.cat([(gap / std).unsqueeze(0), noise.to(std.device)])

    def gradient(position: Tensor) -> Tensor:
        # Second differences of the prior's gradient, which is linear, are zero.
        return total / len(rows) * std * energy.misfit_gradient(position, rows)

    centre, radius = gradient(drift), 2 * eta
    steps = [radius * std * direction / direction.norm() for direction in directions]
    differences = [gradient(drift + step) - 2 * centre + gradient(drift - step) for step in steps]
    lipschitz = max(float(difference.norm()) for difference in differences) / radius**2
    return SampledConstants(lambda_min, lipschitz, lipschitz * eta / lambda_min)


def least_curvature(energy: NetworkEnergy, std: Tensor, rows: Tensor, total: int, generator: torch.Generator) -> float:
    """Return the lower bound m of the curvature at Δ = 0."""
    curvature = energy.curvature(rows, total / len(rows))
    eigenvalue = smallest_eigenvalue(
        lambda vector: std * curvature(std * vector), len(std), _LANCZOS_STEPS, _CONFIDENCE, generator
    )
    return max(eigenvalue.lower_bound, float((std / energy.network.prior_std).square().min()))
