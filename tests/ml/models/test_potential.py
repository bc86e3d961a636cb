from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from tests.ml.likelihoods import LinearRegression, Mixture, regression_data

DATA = synthetic_mixture(50, seed=3)[0]


def thetas(count: int) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def dense(theta: Tensor, data: Tensor, with_prior: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, ∇U and ∇²U by dense automatic differentiation."""
    likelihood = Mixture()

    def potential(at: Tensor) -> Tensor:
        value = -likelihood.log_likelihood(at, data).sum()
        return value - likelihood.log_prior(at) if with_prior else value

    value: Tensor = potential(theta)
    gradient: Tensor = torch.autograd.functional.jacobian(potential, theta)  # type: ignore[no-untyped-call]
    hessian: Tensor = torch.autograd.functional.hessian(potential, theta)  # type: ignore[no-untyped-call]
    return value, gradient, hessian


@pytest.mark.parametrize("with_prior", [True, False])
@pytest.mark.parametrize("rows_at_once", [3, 50, 120, 100_000])
def test_derivatives_are_those_of_dense_autograd_in_any_chunks(rows_at_once: int, with_prior: bool) -> None:
    theta, vector = thetas(2)
    potential = Potential(Mixture(), DATA, with_prior, rows_at_once)
    value, gradient, hessian = dense(theta, DATA, with_prior)
    assert torch.allclose(potential.value(theta), value, rtol=1e-13, atol=0)
    assert torch.allclose(potential.gradient(theta), gradient, rtol=1e-11, atol=1e-11)
    assert torch.allclose(potential.product(theta, vector), hessian @ vector, rtol=1e-11, atol=1e-11)
    assert torch.allclose(potential.hessian(theta), hessian, rtol=1e-11, atol=1e-11)
    assert torch.equal(potential.hessian(theta), potential.hessian(theta).T)


@pytest.mark.parametrize("rows_at_once", [7, 120, 100_000])
def test_averages_are_those_of_the_samples_one_by_one(rows_at_once: int) -> None:
    samples, vector = thetas(5), thetas(6)[5]
    potential = Potential(Mixture(), DATA, True, rows_at_once)
    derivatives = [dense(theta, DATA, True) for theta in samples]
    gradient = torch.stack([gradient for _, gradient, _ in derivatives]).mean(0)
    hessian = torch.stack([hessian for _, _, hessian in derivatives]).mean(0)
    assert torch.allclose(potential.mean_gradient(samples), gradient, rtol=1e-11, atol=1e-11)
    assert torch.allclose(potential.mean_product(samples, vector), hessian @ vector, rtol=1e-11, atol=1e-11)
    assert torch.allclose(potential.mean_hessian(samples), hessian, rtol=1e-11, atol=1e-11)


def test_a_linear_model_has_the_closed_form_hessian() -> None:
    data = regression_data(30, 3, torch.Generator().manual_seed(0))
    mean, covariance = LinearRegression(3).posterior(data)
    potential = Potential(LinearRegression(3), data)
    assert torch.allclose(potential.hessian(thetas(1)[0, :3]), torch.linalg.inv(covariance), rtol=1e-12, atol=1e-12)
    assert float(potential.gradient(mean).norm()) < 1e-11


@dataclass(frozen=True)
class Recording(Mixture):
    """Mixture that records the number of rows of every call."""

    row_counts: list[int] = field(default_factory=list)

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        self.row_counts.append(len(data))
        return super().log_likelihood(theta, data)


def test_the_budget_bounds_rows_times_directions() -> None:
    narrow, wide = Recording(), Recording()
    Potential(narrow, DATA, True, rows_at_once=20).hessian(thetas(1)[0])
    assert (max(narrow.row_counts), sum(narrow.row_counts)) == (
        20,
        8 * 50,
    )  # one direction at a time, in three chunks of rows
    Potential(wide, DATA, True, rows_at_once=100).hessian(thetas(1)[0])
    assert wide.row_counts == [50] * 4  # two of the eight directions at a time
    wide.row_counts.clear()
    Potential(wide, DATA, True, rows_at_once=100).mean_gradient(thetas(5))
    assert wide.row_counts == [50] * 3  # two of the five samples at a time


def test_a_budget_of_no_rows_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="at least one row"):
        Potential(Mixture(), DATA, rows_at_once=0)
