from __future__ import annotations

import math

import pytest
import torch

from ml.errors import NumericalFailure
from ml.inference.laplace import fit_laplace
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from tests.ml.likelihoods import LinearRegression, Mixture, regression_data


def test_it_is_the_posterior_of_a_conjugate_model() -> None:
    data = regression_data(200, 5, torch.Generator().manual_seed(0))
    mean, covariance = LinearRegression(5).posterior(data)
    start = torch.full((5,), 30.0, dtype=torch.float64)
    fitted = fit_laplace(Potential(LinearRegression(5), data), start)
    assert torch.allclose(fitted.mode, mean, rtol=0, atol=1e-12)
    assert torch.allclose(torch.linalg.inv(fitted.hessian), covariance, rtol=0, atol=1e-13)
    assert start.tolist() == [30.0] * 5


@pytest.mark.parametrize("seed", range(5))
def test_a_mode_is_reached_from_an_indefinite_hessian(seed: int) -> None:
    data = synthetic_mixture(400, seed=1)[0]
    potential = Potential(Mixture(), data)
    start = 0.5 * torch.randn(8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(potential.hessian(start))[0]) < 0
    fitted = fit_laplace(potential, start)
    assert float(potential.gradient(fitted.mode).norm()) < 1e-8
    assert float(torch.linalg.eigvalsh(potential.hessian(fitted.mode))[0]) > 0
    assert float(potential.value(fitted.mode)) < float(potential.value(start))
    assert torch.equal(fitted.hessian, potential.hessian(fitted.mode))


def test_a_saddle_is_a_numerical_failure() -> None:
    """Four equal components, which the gradient never separates."""
    potential = Potential(Mixture(), synthetic_mixture(400, seed=1)[0])
    with pytest.raises(NumericalFailure, match="saddle"):
        fit_laplace(potential, torch.zeros(8, dtype=torch.float64))


def test_data_that_overflow_is_a_numerical_failure() -> None:
    data = torch.tensor([[math.inf, 1.0], [1.0, 2.0]], dtype=torch.float64)
    with pytest.raises(NumericalFailure, match="scale of the prior"):
        fit_laplace(Potential(Mixture(), data), torch.zeros(8, dtype=torch.float64))
