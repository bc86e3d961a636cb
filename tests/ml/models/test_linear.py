from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.func import grad, jacrev

from ml.errors import InvalidInput
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models import build
from ml.models.linear import LinearRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.exact_posterior import exact_posterior
from tests.ml.models.attacks import (
    certified_ratios,
    expansion_errors,
    lipschitz,
    narrowest,
    random_attack,
    random_posterior,
    scaled,
    third_derivative,
    with_prior,
)


def random_rows(rows: int, dimensions: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)
    weights = torch.randn(dimensions, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return torch.cat([features, (features @ weights + 0.5 * noise).unsqueeze(1)], 1)


def data_energy(family: LinearRegression, data: Tensor, flat: Tensor) -> Tensor:
    """-E_q log p from the moments of xᵀw: (y - xᵀw)² has the mean (y - xᵀm)² + Σ x²s²."""
    mean, std = flat.chunk(2)
    spread = data[:, :-1].square() @ std.square() / (2 * family.noise_std**2)
    return (spread - family.log_likelihood(mean, data)).sum()


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(2, 40),
    dimensions=st.integers(1, 6),
    noise_std=st.floats(0.2, 3),
    prior_std=st.floats(0.3, 3),
    subset=st.data(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_forgetting_any_subset_equals_closed_form_retraining(
    seed: int, rows: int, dimensions: int, noise_std: float, prior_std: float, subset: st.DataObject
) -> None:
    family, data = LinearRegression(dimensions, noise_std, prior_std), random_rows(rows, dimensions, seed)
    forgotten = subset.draw(st.sets(st.integers(0, rows - 1), min_size=1, max_size=rows - 1))
    retained = data[[row for row in range(rows) if row not in forgotten]]
    outcome = forget(family, family.optimum(data), data, torch.tensor(sorted(forgotten)), Policy(1e-20))
    truth = family.optimum(retained)
    assert outcome.certificate.level == "proved"
    assert float((outcome.posterior.flat() - truth.flat()).abs().max()) <= 1e-10
    assert outcome.posterior.kl(truth) <= outcome.certificate.epsilon <= 1e-17


def test_the_optimum_is_stationary_and_training_reaches_it() -> None:
    family, data = LinearRegression(4, 0.5, 1.3), random_rows(60, 4)
    optimum = family.optimum(data)
    at = family.expand(optimum, data)
    assert float(at.gradient.norm()) <= at.rounding.gradient < 1e-9
    trained = train(family, data, family.initial(data, 0), tolerance=0.0).posterior
    assert torch.allclose(trained.flat(), optimum.flat(), rtol=0, atol=1e-13)
    assert torch.equal(family.initial(data, 0).std, torch.full((4,), 1.3, dtype=torch.float64))


def test_newton_steps_alone_reach_the_optimum_from_the_prior() -> None:
    """Sweeps use the closed form, so training by sweeps does not test the derivatives."""
    family, data = LinearRegression(3, 0.5, 1.3), random_rows(60, 3)
    outcome = forget(family, family.initial(data, 0), data, torch.tensor([0]), Policy(1e-18))
    assert torch.allclose(outcome.posterior.flat(), family.optimum(data[1:]).flat(), rtol=0, atol=1e-11)


def test_the_exact_posterior_is_bayes_rule() -> None:
    """log p(w) + log p(y|w) and the exact log density differ by one constant, the log evidence."""
    family, data = LinearRegression(3, 0.7, 1.3), random_rows(20, 3)
    mean, covariance = exact_posterior(family, data)
    exact = MultivariateNormal(mean, covariance)
    evidence_covariance = 0.7**2 * torch.eye(20).double() + 1.3**2 * data[:, :-1] @ data[:, :-1].T
    evidence = MultivariateNormal(torch.zeros(20, dtype=torch.float64), evidence_covariance).log_prob(data[:, -1])
    for weights in torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64):
        joint = family.log_likelihood(weights, data).sum() + family.log_prior(weights)
        assert float(joint - exact.log_prob(weights)) == pytest.approx(float(evidence), rel=1e-11)
    assert torch.allclose(family.optimum(data).mean, mean, rtol=0, atol=1e-13)
    assert bool((family.optimum(data).std <= covariance.diagonal().sqrt()).all())


def test_the_evidence_bound_is_tight_for_orthogonal_features() -> None:
    features = torch.linalg.qr(random_rows(20, 3)[:, :-1]).Q
    data = torch.cat([features, random_rows(20, 3)[:, -1:]], 1)
    family = LinearRegression(3, 0.7, 1.3)
    covariance = 0.7**2 * torch.eye(20).double() + 1.3**2 * features @ features.T
    evidence = MultivariateNormal(torch.zeros(20, dtype=torch.float64), covariance).log_prob(data[:, -1])
    assert family.expand(family.optimum(data), data).energy == pytest.approx(-float(evidence), rel=1e-12)


@pytest.mark.parametrize("dimensions", [1, 4])
def test_derivatives_agree_with_automatic_differentiation(dimensions: int) -> None:
    family, data, posterior = (
        LinearRegression(dimensions, 0.6, 1.3),
        random_rows(30, dimensions),
        random_posterior((dimensions,), 3),
    )
    at, flat = family.expand(posterior, data), posterior.flat()
    energy = with_prior(family, lambda flat: data_energy(family, data, flat))
    assert at.energy == pytest.approx(float(energy(flat)), rel=1e-13)
    assert torch.allclose(at.gradient, grad(energy)(flat), rtol=1e-12, atol=1e-11)
    assert torch.allclose(at.hessian, jacrev(grad(energy))(flat), rtol=1e-12, atol=1e-11)
    assert torch.equal(at.hessian, at.hessian.T)
    group_gradient = grad(lambda flat: data_energy(family, data[:5], flat))(flat)
    assert torch.allclose(family.group_gradient(posterior, data[:5]), group_gradient, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("share", [1e-3, 0.5, 0.9])
def test_no_third_derivative_in_the_ball_exceeds_the_bound(share: float) -> None:
    family, data, posterior = LinearRegression(3, 0.6, 1.3), random_rows(30, 3), random_posterior((3,), 4)
    radius = share * narrowest(posterior)
    energy, centre = scaled(posterior, with_prior(family, lambda flat: data_energy(family, data, flat)))
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(energy, centre, radius) <= bound
    direction = torch.zeros(6, dtype=torch.float64)
    direction[3 + int(centre[3:].argmin())] = 1.0
    boundary_value = third_derivative(energy, centre - radius * direction, direction)
    assert abs(float(boundary_value.detach())) == pytest.approx(bound, rel=1e-9)
    assert lipschitz(family, posterior, data, narrowest(posterior)) == math.inf
    assert lipschitz(family, posterior, data, math.nan) == math.inf


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_rounding_stays_within_its_a_priori_bound(scale: float) -> None:
    family, data, posterior = LinearRegression(3, 0.6, 1.3), scale * random_rows(30, 3), random_posterior((3,), 5)
    at = family.expand(posterior, data)
    with mpmath.workdps(50):
        x, y = mpmath.matrix(data[:, :-1].tolist()), mpmath.matrix(data[:, -1].tolist())
        mean, std = mpmath.matrix(posterior.mean.tolist()), posterior.std.tolist()
        noise, prior = mpmath.mpf(0.6) ** 2, mpmath.mpf(1.3) ** 2
        moments, mean_gradient = x.T * x / noise, x.T * (x * mean - y) / noise + mean / prior
        std_gradient = [(moments[j, j] + 1 / prior) * std[j] - 1 / mpmath.mpf(std[j]) for j in range(3)]
        curvature = mpmath.matrix(6, 6)
        for i in range(3):
            for j in range(3):
                curvature[i, j] = moments[i, j] + (1 / prior if i == j else 0)
            curvature[3 + i, 3 + i] = moments[i, i] + 1 / prior + 1 / mpmath.mpf(std[i]) ** 2
        lost, lost_curvature = expansion_errors(at, [*mean_gradient, *std_gradient], curvature)
    assert 0 < lost <= at.rounding.gradient < 1e5 * lost
    assert 0 < lost_curvature <= at.rounding.hessian < 1e5 * lost_curvature


def test_certificates_hold_and_are_tight() -> None:
    ratios = certified_ratios(LinearRegression(5, 0.5, 1.0), random_rows(500, 5), 0.01, 1e-4, range(15))
    assert sorted(ratios)[7] <= 1.5


def test_it_is_built_by_name() -> None:
    config = {"dimensions": 2, "noise_std": 0.5, "prior_std": 1.0}
    assert build("linear-regression", config) == LinearRegression(2, 0.5, 1.0)
    assert LinearRegression(2, 0.5, 1.0).parameter_count == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, 1.0), "dimensions is 0"),
        ((2.0, 1.0, 1.0), "dimensions is 2.0"),
        ((2, 0.0, 1.0), "noise_std is 0.0"),
        ((2, 1.0, math.nan), "prior_std is nan"),
        ((2, 1.0, "1"), "prior_std is '1'"),
    ],
)
def test_a_wrong_configuration_is_invalid_input(arguments: tuple[int, float, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LinearRegression(*arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(10, dtype=torch.float64), "rows of 3 columns"),
        (torch.zeros(10, 2, dtype=torch.float64), "rows of 3 columns, 2 features and the target last"),
        (torch.zeros(10, 3), "float64"),
        (torch.zeros(0, 3, dtype=torch.float64), "no rows"),
        (torch.full((10, 3), math.nan, dtype=torch.float64), "NaN"),
        (torch.full((10, 3), 1e50, dtype=torch.float64), "beyond 1e40"),
    ],
)
def test_data_that_cannot_be_modelled_is_invalid_input(data: Tensor, message: str) -> None:
    family = LinearRegression(2, 1.0, 1.0)
    for function in (family.check_data, family.optimum, lambda data: family.initial(data, 0)):
        with pytest.raises(InvalidInput, match=message):
            function(data)


@pytest.mark.parametrize(
    ("shape", "mean", "std", "message"),
    [((3,), 0.0, 1.0, r"needs \(2,\)"), ((2,), 1e41, 1.0, "beyond 1e40"), ((2,), 0.0, 1e-41, "below 1e-40")],
)
def test_a_posterior_of_another_model_is_invalid_input(
    shape: tuple[int, ...], mean: float, std: float, message: str
) -> None:
    posterior = MeanFieldGaussian(
        torch.full(shape, mean, dtype=torch.float64), torch.full(shape, std, dtype=torch.float64)
    )
    with pytest.raises(InvalidInput, match=message):
        LinearRegression(2, 1.0, 1.0).check_posterior(posterior)
