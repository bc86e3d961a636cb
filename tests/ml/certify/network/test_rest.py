from __future__ import annotations

import math

import pytest
import torch

from ml.certify.network.rest import measure_rest
from ml.models.network_energy import frozen_energy
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, dense_gauss_newton, learnable_rows, minimised


def test_what_training_left_is_measured_at_the_frozen_draws() -> None:
    data = learnable_rows(TINY, 400)
    start = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.02).double())
    energy = frozen_energy(TINY, start, data)
    converged = MeanFieldGaussian(start.mean + minimised(energy, torch.arange(400)), start.std)
    numbers = measure_rest(TINY, converged, data)
    exact = (converged.std * energy.gradient(converged.mean - start.mean, torch.arange(400))).norm()
    assert numbers["residual"] == pytest.approx(float(exact), abs=1e-6)
    curvature = dense_gauss_newton(TINY, converged.mean, data) + torch.eye(31).double() / TINY.prior_std**2
    least = torch.linalg.eigvalsh(curvature * converged.std * converged.std.unsqueeze(1))[0]
    assert 0 < numbers["lambda_min"] < 2 * float(least)


def test_the_residual_of_a_row_is_that_of_the_fisher_diagonal() -> None:
    """√(Σ_j σ_j² F_jj/n), F estimated from labels drawn by the network."""
    data = learnable_rows(TINY, 400)
    posterior = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.001).double())
    diagonal = dense_gauss_newton(TINY, posterior.mean, data).diagonal() / 400
    expected = math.sqrt(float(posterior.std.square().dot(diagonal)))
    assert measure_rest(TINY, posterior, data)["residual_of_a_row"] == pytest.approx(expected, rel=0.15)
