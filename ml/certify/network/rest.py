"""How near to rest training came: the gradient that it left, and the least curvature.

The Hessian cannot be stored: lambda_min is a Lanczos lower bound on a sample of rows, for the means only. The residual
is compared with the gradient of a single row, because minibatch training leaves that of hundreds of rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ml.certify.network.kantorovich import least_curvature
from ml.forgetting.network import DEFAULT_RECIPE
from ml.models.network import Network
from ml.models.network_energy import frozen_energy
from ml.posteriors.mean_field import MeanFieldGaussian


def measure_rest(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int = 0) -> dict[str, float]:
    """Return how near to rest training came: residual, residual_of_a_row and lambda_min."""
    network.check_posterior(posterior)
    network.check_data(data)
    generator = torch.Generator().manual_seed(seed)
    energy = frozen_energy(network, posterior, data)
    rows = torch.randperm(len(data), generator=generator)[: DEFAULT_RECIPE.min_rows].to(data.device)
    gradient = energy.gradient(torch.zeros_like(posterior.mean), torch.arange(len(data)))
    fisher_per_row = energy.fisher_diagonal(rows, generator) / len(rows)
    return {
        "residual": float((posterior.std * gradient).norm()),
        "residual_of_a_row": math.sqrt(float(posterior.std.square().dot(fisher_per_row))),
        "lambda_min": least_curvature(energy, posterior.std, rows, len(data), generator),
    }
