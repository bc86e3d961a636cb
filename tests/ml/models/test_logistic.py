from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from ml.errors import InvalidInput
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models import build, logistic
from ml.models.frozen_noise import frozen_noise
from ml.models.logistic import LogisticRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.models.attacks import (
    Energy,
    ascent_attack,
    certified_ratios,
    expansion_errors,
    frozen_data_energy,
    largest_bound_within,
    omit_prior,
    random_attack,
    random_posterior,
    third_derivative,
    with_prior,
)


def random_rows(rows: int, dimensions: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)
    weights = torch.randn(dimensions, generator=generator, dtype=torch.float64)
    chance = torch.rand(rows, generator=generator, dtype=torch.float64)
    return torch.cat([features, (chance < (features @ weights).sigmoid()).double().unsqueeze(1)], 1)


def frozen_noise_of(family: LogisticRegression) -> Tensor:
    return frozen_noise(family.draws, family.dimensions, family.seed, torch.device("cpu"))


def data_energy(family: LogisticRegression, data: Tensor) -> Energy:
    return frozen_data_energy(family, frozen_noise_of(family), data)


@pytest.mark.parametrize(("dimensions", "draws"), [(1, 2), (3, 8), (5, 4)])
def test_derivatives_agree_with_automatic_differentiation(dimensions: int, draws: int) -> None:
    family, data = LogisticRegression(dimensions, 1.3, draws, 1), random_rows(40, dimensions)
    posterior = random_posterior((dimensions,), 3)
    at, flat = family.expand(posterior, data), posterior.flat()
    energy = with_prior(family, data_energy(family, data))
    assert at.energy == pytest.approx(float(energy(flat)), rel=1e-13)
    assert torch.allclose(at.gradient, grad(energy)(flat), rtol=0, atol=1e-12)
    assert torch.allclose(at.hessian, jacrev(grad(energy))(flat), rtol=0, atol=1e-12)
    assert torch.equal(at.hessian, at.hessian.T)
    group_gradient = grad(data_energy(family, data[:7]))(flat)
    assert torch.allclose(family.group_gradient(posterior, data[:7]), group_gradient, rtol=0, atol=1e-12)


def test_the_likelihood_is_a_bernoulli_and_serves_torch_func() -> None:
    family, data = LogisticRegression(3, 1.3, 2, 0), random_rows(20, 3)
    thetas = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batched = vmap(lambda theta: family.log_likelihood(theta, data))(thetas)
    for theta, logs in zip(thetas, batched, strict=True):
        expected = torch.distributions.Bernoulli(logits=data[:, :-1] @ theta).log_prob(data[:, -1])
        assert torch.allclose(logs, expected, rtol=0, atol=1e-13)
    prior = torch.distributions.Normal(0.0, 1.3).log_prob(thetas[0]).sum()
    assert float(family.log_prior(thetas[0])) == pytest.approx(float(prior), rel=1e-6)
    assert family.parameter_count == 3


@pytest.mark.parametrize(("draws", "tolerance"), [(16, 2e-3), (200, 2e-4)])
def test_frozen_noise_is_close_to_the_expectation(draws: int, tolerance: float) -> None:
    """xᵀθ is Gaussian under q, so the expected log-loss of a row is one integral, here by Gauss-Hermite quadrature."""
    data, posterior = random_rows(200, 4), random_posterior((4,), 2)
    family = LogisticRegression(4, 1.0, draws, 0)
    nodes, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(80))
    centre, width = data[:, :-1] @ posterior.mean, (data[:, :-1].square() @ posterior.std.square()).sqrt()
    logits = centre.unsqueeze(1) + width.unsqueeze(1) * nodes
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, data[:, -1:].expand_as(logits), reduction="none"
    )
    expected = float((losses @ weights).sum() / weights.sum())
    assert float(data_energy(family, data)(posterior.flat())) == pytest.approx(expected, rel=tolerance)


def test_the_curvature_is_at_least_that_of_the_prior() -> None:
    family, data = LogisticRegression(4, 0.7, 6, 0), random_rows(30, 4, scale=3.0)
    for seed in range(20):
        at = family.expand(random_posterior((4,), seed, std=10.0 ** (seed % 4 - 2)), data)
        assert float(torch.linalg.eigvalsh(at.hessian)[0]) >= 0.7**-2 * (1 - 1e-9)


def test_training_reaches_the_same_minimum_from_any_start() -> None:
    family, data = LogisticRegression(4, 1.0, 8, 0), random_rows(300, 4)
    trained = train(family, data, family.initial(data, 0), tolerance=0.0)
    assert trained.gradient_norm < 1e-11
    for seed in range(3):
        elsewhere = train(family, data, random_posterior((4,), seed, std=2.0), tolerance=0.0).posterior
        assert torch.allclose(elsewhere.flat(), trained.posterior.flat(), rtol=0, atol=1e-12)


def test_sweeps_never_raise_the_energy() -> None:
    family, data = LogisticRegression(4, 1.0, 8, 0), random_rows(300, 4, scale=5.0)
    posterior, energies = family.initial(data, 0), []
    for _ in range(8):
        energies.append(family.expand(posterior, data).energy)
        posterior = family.sweep(posterior, data)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(energies))
    assert energies[0] - energies[-1] > 1


def test_separated_classes_still_have_a_minimum() -> None:
    features = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
    family, data = LogisticRegression(1, 5.0, 4, 0), torch.cat([features, (features > 0).double()], 1)
    trained = train(family, data, family.initial(data, 0), tolerance=0.0)
    assert trained.gradient_norm < 1e-11
    assert float(trained.posterior.mean) > 5


def ball_settings() -> list[tuple[LogisticRegression, MeanFieldGaussian, Tensor, float]]:
    settings = []
    for dimensions, std, share, scale in [
        (1, 0.3, 0.5, 1.0),
        (2, 0.05, 0.9, 2.0),
        (3, 1.0, 1e-3, 1.0),
        (4, 0.5, 0.3, 0.3),
    ]:
        posterior = random_posterior((dimensions,), dimensions, std)
        family = LogisticRegression(dimensions, 1.3, 4, 0)
        settings.append((family, posterior, random_rows(25, dimensions, 1, scale), share * float(posterior.std.min())))
    return settings


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), ball_settings())
def test_no_third_derivative_in_the_ball_exceeds_the_bound(
    family: LogisticRegression, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    whole, bound = with_prior(family, data_energy(family, data)), family.lipschitz(posterior, data, radius)
    assert 0 < random_attack(whole, posterior.flat(), radius) <= bound
    assert bound / 50 <= ascent_attack(whole, posterior.flat(), radius) <= bound


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), ball_settings())
def test_the_bound_of_the_rows_alone_holds(
    family: LogisticRegression,
    posterior: MeanFieldGaussian,
    data: Tensor,
    radius: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    omit_prior(monkeypatch)
    rows, bound = data_energy(family, data), family.lipschitz(posterior, data, radius)
    assert 0 < random_attack(rows, posterior.flat(), radius) <= bound
    assert bound / 50 <= ascent_attack(rows, posterior.flat(), radius) <= bound


def test_the_bound_of_the_rows_is_attained(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, one feature, one pair ε = ±1: along a of one draw, the other is constant. The worst p is ½ + 1/√12."""
    omit_prior(monkeypatch)
    worst = math.log((math.sqrt(12) + 2) / (math.sqrt(12) - 2))
    family, data = LogisticRegression(1, 1.0, 2, 0), torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(torch.tensor([worst / 2]).double(), torch.tensor([1e-9]).double())
    along = torch.tensor([1.0, 1.0], dtype=torch.float64) / math.sqrt(2)
    reached = third_derivative(data_energy(family, data), posterior.flat(), along)
    bound = family.lipschitz(posterior, data, 0.0)
    assert 0.99 * bound < abs(float(reached.detach())) <= bound
    assert bound == pytest.approx(math.sqrt(8) ** 3 / (6 * math.sqrt(3)) / 2, rel=1e-5)
    for radius in (1e-3, 1.0, 100.0):
        assert family.lipschitz(posterior, data, radius) <= bound * (1 + 1e-5)


def test_the_bound_on_a_ball_covers_the_bounds_at_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ball is so wide that the bound at its centre would be exceeded."""
    omit_prior(monkeypatch)
    family, data = LogisticRegression(1, 1.3, 2, 0), torch.tensor([[0.2, 1.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(torch.zeros((1,)).double(), torch.full((1,), 2.0, dtype=torch.float64))
    within = largest_bound_within(family, posterior, data, 1.0)
    assert 1.1 * family.lipschitz(posterior, data, 0.0) < within <= family.lipschitz(posterior, data, 1.0)


def test_the_bound_grows_with_the_ball_and_is_infinite_where_a_std_reaches_zero() -> None:
    family, posterior, data, _ = ball_settings()[0]
    smallest = float(posterior.std.min())
    bounds = [family.lipschitz(posterior, data, share * smallest) for share in (0.0, 0.2, 0.5, 0.9)]
    assert bounds == sorted(bounds)
    assert math.isfinite(bounds[-1])
    assert family.lipschitz(posterior, data, smallest) == math.inf
    assert family.lipschitz(posterior, data, math.nan) == math.inf


def rounding_errors(family: LogisticRegression, posterior: MeanFieldGaussian, data: Tensor) -> tuple[float, float]:
    """Return the differences of the computed gradient and Hessian from the same formulas in fifty digits."""
    at, size = family.expand(posterior, data), 2 * family.dimensions
    flat = [mpmath.mpf(value) for value in posterior.flat().tolist()]
    precision = 1 / mpmath.mpf(family.prior_std) ** 2
    gradient = [precision * value - (1 / value if i >= size // 2 else 0) for i, value in enumerate(flat)]
    curvature = mpmath.diag([precision + (1 / value**2 if i >= size // 2 else 0) for i, value in enumerate(flat)])
    for epsilon in frozen_noise_of(family).tolist():
        for *features, label in data.tolist():
            a = [mpmath.mpf(x) for x in features] + [mpmath.mpf(x) * e for x, e in zip(features, epsilon, strict=True)]
            p = 1 / (1 + mpmath.exp(-mpmath.fdot(a, flat)))
            for i in range(size):
                gradient[i] += (p - label) * a[i] / family.draws
                for j in range(size):
                    curvature[i, j] += p * (1 - p) * a[i] * a[j] / family.draws
    return expansion_errors(at, gradient, curvature)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e6])
def test_rounding_stays_within_its_a_priori_bound(scale: float) -> None:
    """Two almost equal columns with large, opposite weights: the logits are small differences of large numbers.

    The prior is wide, so that its own rounding is negligible.
    """
    family, data, posterior = LogisticRegression(2, 1e3 * scale, 4, 0), random_rows(12, 2), random_posterior((2,), 5)
    data[:, 1] = data[:, 0] * (1 + data[:, 1] / scale)
    posterior = MeanFieldGaussian(posterior.mean + scale * torch.tensor([1.0, -1.0]).double(), posterior.std)
    rounding = family.expand(posterior, data).rounding
    with mpmath.workdps(50):
        lost, lost_curvature = rounding_errors(family, posterior, data)
    assert 0 < lost <= rounding.gradient < 1e5 * lost
    assert 0 < lost_curvature <= rounding.hessian < 1e5 * lost_curvature
    if scale == 1e6:
        assert lost > 1e-11  # not only rounding of a sum: the logits themselves have lost digits


def test_the_rounding_bound_is_infinite_where_logits_have_no_digits_left() -> None:
    family, posterior = LogisticRegression(2, 1.3, 4, 0), random_posterior((2,), 5)
    assert family.expand(posterior, random_rows(12, 2, scale=1e13)).rounding.hessian == math.inf


def test_certificates_hold_against_retraining_and_are_tight() -> None:
    ratios = certified_ratios(LogisticRegression(5, 1.0, 10, 0), random_rows(600, 5), 0.01, 1e-4, range(15))
    assert sorted(ratios)[7] <= 1.5


def test_forgetting_a_third_of_the_rows_equals_retraining() -> None:
    family, data = LogisticRegression(4, 1.0, 8, 0), random_rows(300, 4)
    start = family.initial(data, 0)
    posterior = train(family, data, start, tolerance=0.0).posterior
    retrained = train(family, data[100:], start, tolerance=0.0).posterior
    outcome = forget(family, posterior, data, torch.arange(100), Policy(1e-14))
    assert outcome.certificate.level == "proved"
    assert posterior.kl(retrained) > 0.1
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-14


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    family, data, posterior = LogisticRegression(3, 1.0, 4, 0), random_rows(100, 3), random_posterior((3,), 1)
    whole, whole_bound = family.expand(posterior, data), family.lipschitz(posterior, data, 1e-2)
    whole_group = family.group_gradient(posterior, data)
    monkeypatch.setattr(logistic, "_CHUNK_ENTRIES", 7 * 12)
    parts = family.expand(posterior, data)
    assert parts.energy == pytest.approx(whole.energy, rel=1e-13)
    assert torch.allclose(parts.gradient, whole.gradient, rtol=0, atol=1e-12)
    assert torch.allclose(parts.hessian, whole.hessian, rtol=0, atol=1e-12)
    assert torch.allclose(family.group_gradient(posterior, data), whole_group, rtol=0, atol=1e-12)
    assert family.lipschitz(posterior, data, 1e-2) == pytest.approx(whole_bound, rel=1e-12)


def test_it_is_built_by_name() -> None:
    config = {"dimensions": 2, "prior_std": 1.0, "draws": 4, "seed": 3}
    assert build("logistic-regression", config) == LogisticRegression(2, 1.0, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, 4, 0), "dimensions is 0"),
        ((2, -1.0, 4, 0), "prior_std is -1.0"),
        ((2, 1.0, 3, 0), "draws is 3: pass an even number"),
        ((2, 1.0, 0, 0), "draws is 0"),
        ((2, 1.0, 4.0, 0), "draws is 4.0"),
        ((2, 1.0, 4, -1), "seed is -1"),
        ((2, 1.0, 4, 2**64), "seed is"),
    ],
)
def test_a_wrong_configuration_is_invalid_input(arguments: tuple[int, float, int, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LogisticRegression(*arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(10, 2, dtype=torch.float64), "rows of 3 columns"),
        (torch.zeros(10, 3), "float64"),
        (torch.zeros(0, 3, dtype=torch.float64), "no rows"),
        (torch.full((10, 3), math.nan, dtype=torch.float64), "NaN"),
        (torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]], dtype=torch.float64), "row 1 has the label 2.0"),
        (torch.tensor([[0.0, 0.0, 0.5]], dtype=torch.float64), "row 0 has the label 0.5"),
        (torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64), "whole numbers from 0 to 1"),
    ],
)
def test_data_that_cannot_be_modelled_is_invalid_input(data: Tensor, message: str) -> None:
    family = LogisticRegression(2, 1.0, 4, 0)
    with pytest.raises(InvalidInput, match=message):
        family.check_data(data)
    with pytest.raises(InvalidInput, match=message):
        family.initial(data, 0)


def test_a_posterior_of_another_model_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match=r"needs \(2,\)"):
        LogisticRegression(2, 1.0, 4, 0).check_posterior(random_posterior((3,), 0))
