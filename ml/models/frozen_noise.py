"""Frozen noise: expectations under q over a fixed set of draws, so that an energy is one function, the same each time.

    θ_t = μ + σ∘ε_t   t = 1..M        E_q g(θ) ≈ (1/M) Σ_t g(θ_t)

θ_t is linear in λ = (μ, σ), with Jacobian E_t = (I, diag ε_t). So a convex g gives a function of λ that is convex too,
with gradient mean_t E_tᵀ∇g(θ_t) and Hessian mean_t E_tᵀ∇²g(θ_t)E_t.

The draws come in antithetic pairs ±ε, so that every odd moment vanishes as those of a Gaussian do. Else a log-loss,
whose label term is linear in θ, would pull σ along the mean of ε with the strength of all the rows. For the same reason
second moments are made exact as far as so few draws allow: 1 for each coordinate, 0 between two in one group of M/2.
Otherwise σ fits the sampling error of its own draws; a σ_j beyond the prior's is the sign of it. What remains of that,
between groups, shrinks with M and is gone where one group holds all weights that meet in one logit: M = 2·dimensions.
"""

import functools
import math

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.regression import check_count

_LARGEST_SEED = 2**63 - 1


def check_draws(draws: int, seed: int) -> None:
    check_count("draws", draws, least=2)
    check_count("seed", seed, least=0)
    if draws % 2 == 1:
        raise InvalidInput(f"draws is {draws}: pass an even number, since draws come in pairs ±ε")
    if seed > _LARGEST_SEED:
        raise InvalidInput(f"seed is {seed}: pass a whole number of at most {_LARGEST_SEED}")


@functools.lru_cache(maxsize=16)
def frozen_noise(draws: int, size: int, seed: int, device: torch.device) -> Tensor:
    """(draws, size), decided by the seed alone: drawn on the CPU, whatever the device."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(draws // 2, size, generator=generator, dtype=torch.float64)
    half = torch.cat([_orthogonal(group) for group in torch.split(half, draws // 2, 1)], 1)
    return torch.cat([half, -half]).to(device)


def _orthogonal(columns: Tensor) -> Tensor:
    """The draws nearest by Gram-Schmidt whose mean εεᵀ is I. The signs keep the columns uniform on the sphere."""
    basis, triangle = torch.linalg.qr(columns)
    draws: Tensor = basis * (math.sqrt(len(columns)) * triangle.diagonal().sign())
    return draws


def pull_back(noise: Tensor, gradients: Tensor) -> Tensor:
    """mean_t E_tᵀ g_t for the g_t of shape (M, size): (2·size,)."""
    return torch.cat([gradients.mean(0), (noise * gradients).mean(0)])


def pull_back_curvature(noise: Tensor, curvatures: Tensor) -> Tensor:
    """mean_t E_tᵀ C_t E_t for symmetric C_t of shape (M, size, size): (2·size, 2·size), symmetric to the last bit."""
    draws, size = noise.shape
    total = curvatures.new_zeros(2, size, 2, size)
    for epsilon, curvature in zip(noise, curvatures, strict=True):
        bent = curvature * epsilon
        total[0, :, 0] += curvature
        total[0, :, 1] += bent
        total[1, :, 1] += bent.mul_(epsilon.unsqueeze(1))
    total[1, :, 0] = total[0, :, 1].T
    lifted = total.view(2 * size, 2 * size)
    return (lifted + lifted.T).div_(2 * draws)
