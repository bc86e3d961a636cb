from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.network import readiness as module
from ml.certify.network.could_fall import CouldFall
from ml.certify.network.readiness import _fall_limit, check_network, measure_rest
from ml.forgetting.network import DEFAULT_RECIPE
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.inference.network_training import converge_means
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, OneLayer, dense_gauss_newton, learnable_rows, minimised


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return learnable_rows(TINY, 2_000)


@pytest.fixture(scope="module")
def converged(rows: Tensor) -> MeanFieldGaussian:
    training = replace(SAFE_BNN, iterations=3_000, learning_rate=1e-2, decay_every=600)
    trained = train_network(TINY, rows, TINY.initial(1), training, torch.Generator().manual_seed(0)).posterior
    return converge_means(TINY, trained, rows, torch.Generator().manual_seed(0), AveragedDescent(600, 400))


def test_a_network_is_ready_once_training_has_converged(converged: MeanFieldGaussian, rows: Tensor) -> None:
    readiness = check_network(TINY, converged, rows)
    assert (readiness.levels, readiness.advice) == (("estimated",), ())
    assert readiness.numbers["could_fall"] < 3.5
    assert 0 < readiness.numbers["could_fall_error"] < 1
    assert "3 short continuations" in readiness.findings[1]


def test_a_network_with_widths_that_training_left_early_is_not_ready(
    converged: MeanFieldGaussian, rows: Tensor
) -> None:
    """The means are nearly at rest, and the widths are a tenth of what the rows support."""
    readiness = check_network(TINY, MeanFieldGaussian(converged.mean, converged.std / 10), rows)
    assert readiness.numbers["could_fall"] > 8
    assert len(readiness.advice) == 1
    assert "train means and widths longer" in readiness.advice[0]


@pytest.mark.parametrize(
    ("nats", "error", "energy", "is_within"),
    [
        (1.0, 0.0, 0.0, True),
        (1.01, 0.0, 0.0, False),
        (2.9, 1.0, 0.0, True),
        (3.0, 1.0, 0.0, False),
        (7.9, 0.5, 2000.0, True),
        (8.1, 0.5, 2000.0, False),
    ],
)
def test_a_nat_beyond_the_margin_or_four_per_mille_of_the_energy_may_fall(
    nats: float, error: float, energy: float, is_within: bool
) -> None:
    fall = CouldFall(nats, error, energy)
    assert (nats <= _fall_limit(fall)) == is_within


def test_what_training_left_is_measured_at_the_frozen_draws() -> None:
    data = learnable_rows(TINY, 400)
    start = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.02).double())
    energy = NetworkEnergy(TINY, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    converged = MeanFieldGaussian(start.mean + minimised(energy, torch.arange(400)), start.std)
    numbers = measure_rest(TINY, converged, data)
    exact = (converged.std * energy.gradient(converged.mean - start.mean, torch.arange(400))).norm()
    assert numbers["residual"] == pytest.approx(float(exact), abs=1e-6)
    curvature = dense_gauss_newton(TINY, converged.mean, data) + torch.eye(31).double() / TINY.prior_std**2
    least = torch.linalg.eigvalsh(curvature * converged.std * converged.std.unsqueeze(1))[0]
    assert 0 < numbers["lambda_min"] < 2 * float(least)


@pytest.mark.parametrize(("share", "at_rest"), [(0.005, True), (0.015, False)])
def test_a_network_is_at_rest_up_to_the_gradient_of_one_row_in_a_hundred(
    share: float, at_rest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small drift from the minimum, in a direction in which its gradient equals that of this share of the rows."""
    monkeypatch.setattr(module, "could_fall", lambda *_: CouldFall(0.0, 0.0, 0.0))
    network = OneLayer()
    data = learnable_rows(network, 400)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), 0.02).double())
    energy = NetworkEnergy(network, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    minimum, direction = minimised(energy, torch.arange(400)), torch.eye(16, dtype=torch.float64)[0]

    def drifted(length: float) -> MeanFieldGaussian:
        return MeanFieldGaussian(start.mean + minimum + length * direction, start.std)

    numbers = measure_rest(network, drifted(1e-3), data)
    length = 1e-3 * share * 400 * numbers["residual_of_a_row"] / numbers["residual"]
    readiness = check_network(network, drifted(length), data)
    assert readiness.numbers["residual"] == pytest.approx(share * 400 * numbers["residual_of_a_row"], rel=0.1)
    assert readiness.ready == at_rest
    assert all("polish" in sentence for sentence in readiness.advice)
    finding = f"that of {share * 400:.0f} rows pulling in one direction; the data set has 400 rows"
    assert finding in readiness.findings[0]


def test_the_residual_of_a_row_is_that_of_the_fisher_diagonal() -> None:
    """√(Σ_j σ_j² F_jj/n), F estimated from labels drawn by the network."""
    data = learnable_rows(TINY, 400)
    posterior = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.001).double())
    diagonal = dense_gauss_newton(TINY, posterior.mean, data).diagonal() / 400
    expected = math.sqrt(float(posterior.std.square().dot(diagonal)))
    assert measure_rest(TINY, posterior, data)["residual_of_a_row"] == pytest.approx(expected, rel=0.15)
