"""Readiness of a network's posterior: the gradient that training left, and how far the energy could still fall.

The Hessian cannot be stored: lambda_min is a Lanczos lower bound on a sample of rows, for the means only. The residual
is compared with the gradient of a single row, because minibatch training leaves that of hundreds of rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ml.certify.network.could_fall import RESTARTS, CouldFall, could_fall
from ml.certify.network.kantorovich import least_curvature
from ml.certify.network.validation import NORMAL_95
from ml.certify.readiness import POLISH, Readiness
from ml.forgetting.network import DEFAULT_RECIPE
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian

_MAX_RESIDUAL_SHARE = 0.01  # residual of a network in single-row gradients, as a share of the rows
# What may still fall: whichever is larger of a nat beyond the margin of its estimate, and a share of the energy.
_MAX_FALL, _MAX_FALL_SHARE = 1.0, 0.004


def check_network(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int = 0) -> Readiness:
    """Check a network's mean-field posterior against its training rows. Its certificates are at most estimated."""
    numbers, fall = measure_rest(network, posterior, data, seed), could_fall(network, posterior, data)
    rows_pulling = numbers["residual"] / numbers["residual_of_a_row"]
    findings = (
        f"the gradient left by training is {numbers['residual']:.2g} in the natural metric, as large as that of "
        f"{rows_pulling:.0f} rows pulling in one direction; the data set has {len(data)} rows",
        f"in {RESTARTS} short continuations of training the energy fell by up to {fall.nats:.2g} nats (standard error "
        f"{fall.standard_error:.2g}) of {fall.energy:.4g}; longer ones may find more",
    )
    advice = []
    if rows_pulling > _MAX_RESIDUAL_SHARE * len(data):
        advice.append(f"training has not converged, and forgetting does not correct that: {POLISH}")
    if fall.nats > _fall_limit(fall):
        advice.append(
            f"the energy can still fall by {fall.nats:.2g} nats: train means and widths longer, and register the result"
        )
    numbers |= {"could_fall": fall.nats, "could_fall_error": fall.standard_error}
    return Readiness(("estimated",), math.nan, numbers, findings, tuple(advice))


def measure_rest(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int = 0) -> dict[str, float]:
    """Return how near to rest training came: residual, residual_of_a_row and lambda_min."""
    network.check_posterior(posterior)
    network.check_data(data)
    generator = torch.Generator().manual_seed(seed)
    energy = NetworkEnergy(network, data, frozen_draws(posterior, DEFAULT_RECIPE.draws, seed=0))
    rows = torch.randperm(len(data), generator=generator)[: DEFAULT_RECIPE.min_rows].to(data.device)
    gradient = energy.gradient(torch.zeros_like(posterior.mean), torch.arange(len(data)))
    fisher_per_row = energy.fisher_diagonal(rows, generator) / len(rows)
    return {
        "residual": float((posterior.std * gradient).norm()),
        "residual_of_a_row": math.sqrt(float(posterior.std.square().dot(fisher_per_row))),
        "lambda_min": least_curvature(energy, posterior.std, rows, len(data), generator),
    }


def _fall_limit(fall: CouldFall) -> float:
    return max(_MAX_FALL + NORMAL_95 * fall.standard_error, _MAX_FALL_SHARE * abs(fall.energy))
