"""The exact posterior of Bayesian linear regression, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from ml.models.linear import LinearRegression


def exact_posterior(family: LinearRegression, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of p(w | data), which is Gaussian but not mean field."""
    features, target = data[:, :-1], data[:, -1]
    precision = features.T @ features / family.noise_std**2
    precision.diagonal().add_(family.prior_std**-2)
    covariance = torch.linalg.inv((precision + precision.T) / 2)
    return covariance @ (target @ features) / family.noise_std**2, covariance
