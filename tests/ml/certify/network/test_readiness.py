from __future__ import annotations

import math

import pytest
import torch

from ml.certify.network.readiness import check_network
from ml.certify.readiness import Readiness
from ml.forgetting.network import DEFAULT_RECIPE
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, OneLayer, dense_gauss_newton, learnable_rows, minimised


def test_a_network_is_ready_once_training_has_converged() -> None:
    data = learnable_rows(TINY, 400)
    start = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.02).double())
    energy = NetworkEnergy(TINY, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    converged = MeanFieldGaussian(start.mean + minimised(energy, torch.arange(400)), start.std)
    after, before = (check_network(TINY, posterior, data) for posterior in (converged, start))
    assert (after.levels, after.ready) == (("estimated",), True)
    assert (before.levels, before.ready) == (("estimated",), False)
    assert "polish" in before.advice[0]
    exact = (converged.std * energy.gradient(converged.mean - start.mean, torch.arange(400))).norm()
    assert after.numbers["residual"] == pytest.approx(float(exact), abs=1e-6)
    curvature = dense_gauss_newton(TINY, converged.mean, data) + torch.eye(31).double() / TINY.prior_std**2
    least = torch.linalg.eigvalsh(curvature * converged.std * converged.std.unsqueeze(1))[0]
    assert 0 < after.numbers["lambda_min"] < 2 * float(least)


@pytest.mark.parametrize(("share", "ready"), [(0.005, True), (0.015, False)])
def test_a_network_is_ready_up_to_the_gradient_of_one_row_in_a_hundred(share: float, ready: bool) -> None:
    """A small drift from the minimum, in a direction in which its gradient equals that of this share of the rows."""
    network = OneLayer()
    data = learnable_rows(network, 400)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), 0.02).double())
    energy = NetworkEnergy(network, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    minimum, direction = minimised(energy, torch.arange(400)), torch.eye(16, dtype=torch.float64)[0]

    def readiness(length: float) -> Readiness:
        posterior = MeanFieldGaussian(start.mean + minimum + length * direction, start.std)
        return check_network(network, posterior, data)

    numbers = readiness(1e-3).numbers
    drifted = readiness(1e-3 * share * 400 * numbers["residual_of_a_row"] / numbers["residual"])
    assert drifted.numbers["residual"] == pytest.approx(share * 400 * numbers["residual_of_a_row"], rel=0.1)
    assert drifted.ready == ready
    assert f"that of {share * 400:.0f} rows pulling in one direction; the data set has 400 rows" in drifted.findings[0]


def test_the_residual_of_a_row_is_that_of_the_fisher_diagonal() -> None:
    """√(Σ_j σ_j² F_jj/n), F estimated from labels drawn by the network."""
    data = learnable_rows(TINY, 400)
    posterior = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.001).double())
    diagonal = dense_gauss_newton(TINY, posterior.mean, data).diagonal() / 400
    expected = math.sqrt(float(posterior.std.square().dot(diagonal)))
    assert check_network(TINY, posterior, data).numbers["residual_of_a_row"] == pytest.approx(expected, rel=0.15)
