from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn.functional import logsigmoid

from ml.errors import InvalidInput
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models import build, logistic
from ml.models.logistic import LogisticRegression
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.models import logistic_truth
from tests.ml.models.attacks import (
    Energy,
    ascent_attack,
    certified_ratios,
    expansion_errors,
    largest_bound_within,
    lipschitz,
    narrowest,
    omit_prior,
    random_attack,
    random_posterior,
    scaled,
    third_derivative,
    with_prior,
)


def random_rows(rows: int, dimensions: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)
    weights = torch.randn(dimensions, generator=generator, dtype=torch.float64)
    chance = torch.rand(rows, generator=generator, dtype=torch.float64)
    return torch.cat([features, (chance < (features @ weights).sigmoid()).double().unsqueeze(1)], 1)


def data_energy(data: Tensor, nodes: int = 101) -> Energy:
    """Return the expected log-loss of the rows by a plain sum over z, which can be differentiated."""
    z = torch.linspace(-9, 9, nodes, dtype=torch.float64)
    weights = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    features, sign = data[:, :-1], 1 - 2 * data[:, -1:]

    def energy(flat: Tensor) -> Tensor:
        mean, std = flat.chunk(2)
        width = (features.square() @ std.square()).sqrt().unsqueeze(1)
        t = sign * (features @ mean).unsqueeze(1) + width * z
        return -(logsigmoid(-t) @ weights).sum()

    return energy


@pytest.mark.parametrize(("dimensions", "scale"), [(1, 1.0), (3, 5.0), (5, 0.1)])
def test_derivatives_agree_with_automatic_differentiation(dimensions: int, scale: float) -> None:
    family, data = LogisticRegression(dimensions, 1.3), random_rows(40, dimensions, scale=scale)
    posterior = random_posterior((dimensions,), 3)
    at, flat = family.expand(posterior, data), posterior.flat()
    energy = with_prior(family, data_energy(data, nodes=401))
    assert at.energy == pytest.approx(float(energy(flat)), rel=1e-13)
    assert torch.allclose(at.gradient, grad(energy)(flat), rtol=1e-13, atol=1e-12)
    assert torch.allclose(at.hessian, jacrev(grad(energy))(flat), rtol=1e-12, atol=1e-12)
    assert torch.equal(at.hessian, at.hessian.T)
    group_gradient = grad(data_energy(data[:7], nodes=401))(flat)
    assert torch.allclose(family.group_gradient(posterior, data[:7]), group_gradient, rtol=0, atol=1e-12)


def test_the_likelihood_is_a_bernoulli_and_serves_torch_func() -> None:
    family, data = LogisticRegression(3, 1.3), random_rows(20, 3)
    thetas = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batched = vmap(lambda theta: family.log_likelihood(theta, data))(thetas)
    for theta, logs in zip(thetas, batched, strict=True):
        expected = torch.distributions.Bernoulli(logits=data[:, :-1] @ theta).log_prob(data[:, -1])
        assert torch.allclose(logs, expected, rtol=0, atol=1e-13)
    prior = torch.distributions.Normal(0.0, 1.3).log_prob(thetas[0]).sum()
    assert float(family.log_prior(thetas[0])) == pytest.approx(float(prior), rel=1e-6)
    assert family.parameter_count == 3


def test_the_average_over_frozen_noise_tends_to_the_energy() -> None:
    """Softmax over two classes is logistic in θ₁ - θ₀, which is Gaussian too; its energy averages over drawn noise."""
    data, wide = random_rows(200, 4), random_posterior((2, 4), 2)
    difference = MeanFieldGaussian(wide.mean[1] - wide.mean[0], wide.std.square().sum(0).sqrt())
    exact = LogisticRegression(4, 1.0).expand(difference, data).energy - prior_energy(difference)
    errors = []
    for draws in (8, 64, 1024):
        average = SoftmaxRegression(4, 2, 1.0, draws, 0).expand(wide, data).energy - prior_energy(wide)
        errors.append(abs(average / exact - 1))
    assert errors[0] > 1e-4
    assert errors[2] < 1e-4 < 4 * errors[0]


def prior_energy(posterior: MeanFieldGaussian) -> float:
    """Return KL(q ‖ N(0, 1))."""
    return float((posterior.flat().square().sum() - posterior.std.numel()) / 2 - posterior.std.log().sum())


def test_without_width_the_energy_is_the_loss_at_the_mean() -> None:
    family, data, mean = LogisticRegression(3, 1.0), random_rows(30, 3), random_posterior((3,), 4).mean
    narrow = MeanFieldGaussian(mean, torch.full((3,), 1e-9, dtype=torch.float64))
    losses = family.expand(narrow, data).energy - prior_energy(narrow)
    assert losses == pytest.approx(-float(family.log_likelihood(mean, data).sum()), rel=1e-12)
    gradient = grad(lambda theta: -family.log_likelihood(theta, data).sum())(mean)
    assert torch.allclose(family.group_gradient(narrow, data)[:3], gradient, rtol=0, atol=1e-13)


def test_the_energy_is_jointly_convex() -> None:
    """At the middle of two posteriors it is at most their mean, whatever their widths."""
    family, data = LogisticRegression(3, 2.0), random_rows(20, 3, scale=3.0)
    for seed in range(20):
        first, second = (random_posterior((3,), 2 * seed + i, std=10.0 ** (seed % 3 - 1 + i)) for i in range(2))
        middle = first.with_flat((first.flat() + second.flat()) / 2)
        energies = [family.expand(posterior, data).energy for posterior in (first, second, middle)]
        assert energies[2] < (energies[0] + energies[1]) / 2


def test_the_curvature_is_at_least_that_of_the_prior() -> None:
    family, data = LogisticRegression(4, 0.7), random_rows(30, 4, scale=3.0)
    for seed in range(20):
        at = family.expand(random_posterior((4,), seed, std=10.0 ** (seed % 4 - 2)), data)
        assert float(torch.linalg.eigvalsh(at.hessian)[0]) >= 0.7**-2 * (1 - 1e-9)


def test_training_reaches_the_same_minimum_from_any_start() -> None:
    family, data = LogisticRegression(4, 1.0), random_rows(300, 4)
    trained = train(family, data, family.initial(data, 0), tolerance=0.0)
    assert trained.gradient_norm < 1e-11
    for seed in range(3):
        elsewhere = train(family, data, random_posterior((4,), seed, std=2.0), tolerance=0.0).posterior
        assert torch.allclose(elsewhere.flat(), trained.posterior.flat(), rtol=0, atol=1e-12)


def test_sweeps_never_raise_the_energy() -> None:
    family, data = LogisticRegression(4, 1.0), random_rows(300, 4, scale=5.0)
    posterior, energies = family.initial(data, 0), []
    for _ in range(8):
        energies.append(family.expand(posterior, data).energy)
        posterior = family.sweep(posterior, data)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(energies))
    assert energies[0] - energies[-1] > 1


def test_separated_classes_still_have_a_minimum() -> None:
    features = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
    family, data = LogisticRegression(1, 5.0), torch.cat([features, (features > 0).double()], 1)
    trained = train(family, data, family.initial(data, 0), tolerance=0.0)
    assert trained.gradient_norm < 1e-11
    assert float(trained.posterior.mean) > 5


def ball_settings() -> list[tuple[LogisticRegression, MeanFieldGaussian, Tensor, float]]:
    settings = []
    for dimensions, std, share, scale in [
        (1, 0.3, 0.5, 1.0),
        (2, 0.05, 0.9, 2.0),
        (3, 1.0, 1e-3, 1.0),
        (2, 3.0, 0.2, 3.0),
        (4, 0.5, 0.3, 0.3),
    ]:
        posterior = random_posterior((dimensions,), dimensions, std)
        family = LogisticRegression(dimensions, 1.3)
        settings.append((family, posterior, random_rows(25, dimensions, 1, scale), share * narrowest(posterior)))
    return settings


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), ball_settings())
def test_no_third_derivative_in_the_ball_exceeds_the_bound(
    family: LogisticRegression, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    whole, centre = scaled(posterior, with_prior(family, data_energy(data)))
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(whole, centre, radius) <= bound
    assert bound / 50 <= ascent_attack(whole, centre, radius) <= bound


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), ball_settings())
def test_the_bound_of_the_rows_alone_holds(
    family: LogisticRegression,
    posterior: MeanFieldGaussian,
    data: Tensor,
    radius: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    omit_prior(monkeypatch)
    rows, centre = scaled(posterior, data_energy(data))
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(rows, centre, radius) <= bound
    assert bound / 200 <= ascent_attack(rows, centre, radius) <= bound


def test_the_bound_of_the_rows_is_attained_up_to_a_factor_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row without width, where f''' is largest: along (p, q) it is f'''|x|³(p³ + 3pq²), at most √2 f'''|x|³."""
    omit_prior(monkeypatch)
    family, data = LogisticRegression(1, 1.0), torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    mean = torch.tensor([math.log(2 + math.sqrt(3)) / 2], dtype=torch.float64)
    posterior = MeanFieldGaussian(mean, torch.tensor([2.0**-20], dtype=torch.float64))
    rows, centre = scaled(posterior, data_energy(data))
    along = torch.tensor([1.0, 1.0], dtype=torch.float64) / math.sqrt(2)
    reached = abs(float(third_derivative(rows, centre, along).detach()))
    assert reached == pytest.approx(math.sqrt(2) / (6 * math.sqrt(3)) * 2.0**-57, rel=1e-6)
    for radius in (0.0, 1e-3, 0.9):
        assert lipschitz(family, posterior, data, radius) == pytest.approx(3 * reached, rel=1e-4)


def test_the_bound_on_a_ball_covers_the_bounds_at_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ball is so wide that the bound at its centre would be exceeded."""
    omit_prior(monkeypatch)
    family, data = LogisticRegression(1, 1.3), torch.tensor([[0.2, 1.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(torch.zeros((1,)).double(), torch.full((1,), 2.0, dtype=torch.float64))
    within = largest_bound_within(family, posterior, data, 0.25)
    assert 1.1 * lipschitz(family, posterior, data, 0.0) < within <= lipschitz(family, posterior, data, 0.25)


def test_the_bound_grows_with_the_ball_and_is_infinite_where_a_std_reaches_zero() -> None:
    family, posterior, data, _ = ball_settings()[0]
    smallest = narrowest(posterior)
    bounds = [lipschitz(family, posterior, data, share * smallest) for share in (0.0, 0.2, 0.5, 0.9)]
    assert bounds == sorted(bounds)
    assert math.isfinite(bounds[-1])
    assert lipschitz(family, posterior, data, smallest) == math.inf
    assert lipschitz(family, posterior, data, math.nan) == math.inf


def rounding_errors(family: LogisticRegression, posterior: MeanFieldGaussian, data: Tensor) -> tuple[float, float]:
    """Return the differences of the computed gradient and Hessian from exact ones.

    By the heat equation, ∂/∂v² of an expectation is half its second derivative by the centre. So with y = x²∘σ the
    gradient is (E f' x, E f'' y), and the Hessian has the blocks E f'' xxᵀ, E f''' xyᵀ and
    E f'''' yyᵀ + E f'' diag(x²).
    """
    at, size = family.expand(posterior, data), family.dimensions
    mean, std = ([mpmath.mpf(value) for value in part.tolist()] for part in (posterior.mean, posterior.std))
    precision = 1 / mpmath.mpf(family.prior_std) ** 2
    gradient = [precision * m for m in mean] + [precision * s - 1 / s for s in std]
    curvature = mpmath.diag([precision] * size + [precision + 1 / s**2 for s in std])
    for *features, label in data.tolist():
        sign, x = 1 - 2 * int(label), mpmath.matrix(features)
        y = mpmath.matrix([value**2 * s for value, s in zip(x, std, strict=True)])
        centre, width = sign * mpmath.fdot(x, mean), mpmath.sqrt(mpmath.fdot(y, std))
        first = sign * logistic_truth.expect_slope(centre, width)
        second, third, fourth = (
            logistic_truth.expect_local(function, centre, width)
            for function in (logistic_truth.curvature, logistic_truth.third, logistic_truth.fourth)
        )
        for i in range(size):
            gradient[i] += first * x[i]
            gradient[size + i] += second * y[i]
            curvature[size + i, size + i] += second * x[i] ** 2
            for j in range(size):
                curvature[i, j] += second * x[i] * x[j]
                curvature[i, size + j] += sign * third * x[i] * y[j]
                curvature[size + j, i] += sign * third * x[i] * y[j]
                curvature[size + i, size + j] += fourth * y[i] * y[j]
    return expansion_errors(at, gradient, curvature)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e6])
def test_rounding_stays_within_its_a_priori_bound(scale: float) -> None:
    """Two almost equal columns with large, opposite weights: the logits are small differences of large numbers.

    The prior is wide, so that its own rounding is negligible.
    """
    family, data, posterior = LogisticRegression(2, 1e3 * scale), random_rows(12, 2), random_posterior((2,), 5)
    data[:, 1] = data[:, 0] * (1 + data[:, 1] / scale)
    posterior = MeanFieldGaussian(posterior.mean + scale * torch.tensor([1.0, -1.0]).double(), posterior.std)
    rounding = family.expand(posterior, data).rounding
    with mpmath.workdps(25):
        lost, lost_curvature = rounding_errors(family, posterior, data)
    assert 0 < lost <= rounding.gradient < 1e5 * lost
    assert 0 < lost_curvature <= rounding.hessian < 1e5 * lost_curvature
    if scale == 1e6:
        assert lost > 1e-11  # not only rounding of a sum: the logits themselves have lost digits


@pytest.mark.parametrize("scale", [1e-4, 4.0, 1e4])
def test_rounding_stays_within_its_bound_for_rows_of_any_length(scale: float) -> None:
    """Narrow and wide Gaussians: v is about a third of the scale."""
    family, data, posterior = LogisticRegression(2, 1e3), random_rows(6, 2, scale=scale), random_posterior((2,), 5)
    rounding = family.expand(posterior, data).rounding
    with mpmath.workdps(25):
        lost, lost_curvature = rounding_errors(family, posterior, data)
    assert 0 < lost <= rounding.gradient < 1e6 * lost
    assert 0 < lost_curvature <= rounding.hessian < 1e6 * lost_curvature


def test_the_rounding_bound_is_infinite_where_logits_have_no_digits_left() -> None:
    family, posterior = LogisticRegression(2, 1.3), random_posterior((2,), 5)
    assert family.expand(posterior, random_rows(12, 2, scale=1e13)).rounding.hessian == math.inf


def test_certificates_hold_against_retraining_and_are_tight() -> None:
    ratios = certified_ratios(LogisticRegression(5, 1.0), random_rows(600, 5), 0.01, 1e-4, range(15))
    assert sorted(ratios)[7] <= 1.5


def test_forgetting_a_third_of_the_rows_equals_retraining() -> None:
    family, data = LogisticRegression(4, 1.0), random_rows(300, 4)
    start = family.initial(data, 0)
    posterior = train(family, data, start, tolerance=0.0).posterior
    retrained = train(family, data[100:], start, tolerance=0.0).posterior
    outcome = forget(family, posterior, data, torch.arange(100), Policy(1e-14))
    assert outcome.certificate.level == "proved"
    assert posterior.kl(retrained) > 0.1
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-14


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    family, data, posterior = LogisticRegression(3, 1.0), random_rows(100, 3), random_posterior((3,), 1)
    whole, whole_bound = family.expand(posterior, data), lipschitz(family, posterior, data, 1e-2)
    whole_group = family.group_gradient(posterior, data)
    monkeypatch.setattr(logistic, "_CHUNK_ROWS", 7)
    parts = family.expand(posterior, data)
    assert parts.energy == pytest.approx(whole.energy, rel=1e-13)
    assert torch.allclose(parts.gradient, whole.gradient, rtol=0, atol=1e-12)
    assert torch.allclose(parts.hessian, whole.hessian, rtol=0, atol=1e-12)
    assert torch.allclose(family.group_gradient(posterior, data), whole_group, rtol=0, atol=1e-12)
    assert lipschitz(family, posterior, data, 1e-2) == pytest.approx(whole_bound, rel=1e-12)


def test_it_is_built_by_name_also_from_configurations_with_frozen_noise() -> None:
    config = {"dimensions": 2, "prior_std": 1.0}
    family = LogisticRegression(2, 1.0)
    assert (
        build("logistic-regression", config)
        == build("logistic-regression", {**config, "draws": 4, "seed": 3})
        == family
    )
    assert family.convex
    assert "ELBO" in family.energy_name


@pytest.mark.parametrize(("arguments", "message"), [((0, 1.0), "dimensions is 0"), ((2, -1.0), "prior_std is -1.0")])
def test_a_wrong_configuration_is_invalid_input(arguments: tuple[int, float], message: str) -> None:
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
    family = LogisticRegression(2, 1.0)
    with pytest.raises(InvalidInput, match=message):
        family.check_data(data)
    with pytest.raises(InvalidInput, match=message):
        family.initial(data, 0)


def test_a_posterior_of_another_model_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match=r"needs \(2,\)"):
        LogisticRegression(2, 1.0).check_posterior(random_posterior((3,), 0))
