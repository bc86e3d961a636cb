"""Frozen noise: expectations under q over a fixed set of draws, so that an energy is a deterministic function.

    θ_t = μ + σ∘ε_t   t = 1..M        E_q g(θ) ≈ (1/M) Σ_t g(θ_t)

θ_t is linear in λ = (μ, σ), with Jacobian E_t = (I, diag ε_t). So a convex g gives a convex function of λ, with
gradient mean_t E_tᵀ∇g(θ_t) and Hessian mean_t E_tᵀ∇²g(θ_t)E_t.

The draws come in antithetic pairs ±ε, so that every odd moment vanishes as those of a Gaussian do. Without pairs, a
log-loss, whose label term is linear in θ, would pull σ along the mean of ε with the strength of all the rows. For the
same reason second moments are exact as far as so few draws allow: 1 for each coordinate, 0 between two coordinates in
one group of M/2. Otherwise σ fits the sampling error of its own draws, which shows as a σ_j larger than the prior's.
The remaining error, between groups, shrinks with M, and vanishes where one group holds all parameters: M = 2·size.
"""

from __future__ import annotations

import functools
import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.checks import check_count
from ml.models.family import Family

BY_SIZE = 0
"""In place of a number of draws: as many as the number of parameters asks for."""
_LARGEST_SEED = 2**63 - 1


@runtime_checkable
class FrozenNoiseFamily(Family, Protocol):
    """A family whose F averages the loss over frozen noise. Its optimum is not that of the exact ELBO."""

    draws: int
    seed: int

    def with_noise(self, draws: int, seed: int) -> Family:
        """Return the same model with other noise."""


def energy_name(draws: int, seed: int) -> str:
    """Return what the energy is, in the words of a certificate."""
    return (
        f"the average of the loss over {draws} frozen noise draws (seed {seed}), in place of its expectation, "
        "plus KL(q ‖ prior)"
    )


def check_draws(draws: int, seed: int) -> None:
    """Raise InvalidInput unless frozen noise can be drawn with these arguments."""
    check_count("draws", draws, minimum=2)
    check_count("seed", seed, minimum=0)
    if draws % 2 == 1:
        raise InvalidInput(f"draws is {draws}: pass an even number, since draws come in pairs ±ε")
    if seed > _LARGEST_SEED:
        raise InvalidInput(f"seed is {seed}: pass a whole number of at most {_LARGEST_SEED}")


@functools.lru_cache(maxsize=16)
def frozen_noise(draws: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Return noise of shape (draws, size). Drawn on the CPU, so that it depends on the seed and not on the device."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(draws // 2, size, generator=generator, dtype=torch.float64)
    half = torch.cat([_orthogonal(group) for group in torch.split(half, draws // 2, 1)], 1)
    return torch.cat([half, -half]).to(device)


def _orthogonal(columns: Tensor) -> Tensor:
    """Orthogonalise the columns, so that the mean of εεᵀ is I. The signs keep the columns uniform on the sphere."""
    basis, triangle = torch.linalg.qr(columns)
    draws: Tensor = basis * (math.sqrt(len(columns)) * triangle.diagonal().sign())
    return draws


def pull_back(noise: Tensor, gradients: Tensor) -> Tensor:
    """Return mean_t E_tᵀ g_t, of shape (2·size,), for gradients g_t of shape (M, size)."""
    return torch.cat([gradients.mean(0), (noise * gradients).mean(0)])


def pull_back_curvature(noise: Tensor, curvatures: Tensor) -> Tensor:
    """Return mean_t E_tᵀ C_t E_t, of shape (2·size, 2·size) exactly symmetric, for symmetric C_t (M, size, size)."""
    draws, size = noise.shape
    total = curvatures.new_zeros(2, size, 2, size)
    for epsilon, curvature in zip(noise, curvatures, strict=True):
        scaled = curvature * epsilon
        total[0, :, 0] += curvature
        total[0, :, 1] += scaled
        total[1, :, 1] += scaled.mul_(epsilon.unsqueeze(1))
    total[1, :, 0] = total[0, :, 1].T
    lifted = total.view(2 * size, 2 * size)
    return (lifted + lifted.T).div_(2 * draws)
