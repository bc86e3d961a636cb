"""Readiness of a network's posterior.

The Hessian cannot be stored: lambda_min is a Lanczos lower bound on a sample of rows, for the means only. The residual
is compared with the gradient of a single row, because minibatch training leaves that of hundreds of rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ml.certify.network.kantorovich import least_curvature
from ml.certify.readiness import POLISH, Readiness
from ml.forgetting.network import DEFAULT_RECIPE
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian

_MAX_RESIDUAL_SHARE = 0.01  # residual of a network in single-row gradients, as a share of the rows


def check_network(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int = 0) -> Readiness:
    """Check a network's mean-field posterior against its training rows. Its certificates are at most estimated."""
    network.check_posterior(posterior)
    network.check_data(data)
    generator = torch.Generator().manual_seed(seed)
    energy = NetworkEnergy(network, data, frozen_draws(posterior, DEFAULT_RECIPE.draws, seed=0))
    rows = torch.randperm(len(data), generator=generator)[: DEFAULT_RECIPE.min_rows].to(data.device)
    gradient = energy.gradient(torch.zeros_like(posterior.mean), torch.arange(len(data)))
    residual = float((posterior.std * gradient).norm())
    fisher_per_row = energy.fisher_diagonal(rows, generator) / len(rows)
    residual_of_a_row = math.sqrt(float(posterior.std.square().dot(fisher_per_row)))
    numbers = {
        "residual": residual,
        "residual_of_a_row": residual_of_a_row,
        "lambda_min": least_curvature(energy, posterior.std, rows, len(data), generator),
    }
    equivalent_rows = residual / residual_of_a_row
    findings = (
        f"the gradient left by training is {residual:.2g} in the natural metric, as large as that of "
        f"{equivalent_rows:.0f} rows pulling in one direction; the data set has {len(data)} rows",
    )
    if equivalent_rows > _MAX_RESIDUAL_SHARE * len(data):
        advice = (f"training has not converged, and forgetting does not correct that: {POLISH}",)
        return Readiness(("estimated",), math.nan, numbers, findings, advice)
    return Readiness(("estimated",), math.nan, numbers, findings, ())
