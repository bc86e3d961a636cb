from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.func import grad, jacrev, vmap

from ml.errors import InvalidInput
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models import build, softmax
from ml.models.family import width_scale
from ml.models.frozen_noise import FrozenNoiseFamily, frozen_noise
from ml.models.regression import WeightPrior
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.models.attacks import (
    Energy,
    ascent_attack,
    certified_ratios,
    expansion_errors,
    frozen_data_energy,
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


def random_rows(rows: int, dimensions: int, classes: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)
    weights = torch.randn(classes, dimensions, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((features @ weights.T).softmax(1), 1, generator=generator)
    return torch.cat([features, labels.double()], 1)


def frozen_noise_of(family: SoftmaxRegression) -> Tensor:
    return frozen_noise(family.draws, family.parameter_count, family.seed, torch.device("cpu"))


def data_energy(family: SoftmaxRegression, data: Tensor) -> Energy:
    return frozen_data_energy(family, frozen_noise_of(family), data)


@pytest.mark.parametrize(("dimensions", "classes", "draws"), [(1, 2, 2), (3, 4, 4), (2, 5, 8)])
def test_derivatives_agree_with_automatic_differentiation(dimensions: int, classes: int, draws: int) -> None:
    family, data = SoftmaxRegression(dimensions, classes, 1.3, draws, 1), random_rows(40, dimensions, classes)
    posterior = random_posterior((classes, dimensions), 3)
    at, flat = family.expand(posterior, data), posterior.flat()
    energy = with_prior(family, data_energy(family, data))
    assert at.energy == pytest.approx(float(energy(flat)), rel=1e-13)
    assert torch.allclose(at.gradient, grad(energy)(flat), rtol=0, atol=1e-12)
    assert torch.allclose(at.hessian, jacrev(grad(energy))(flat), rtol=0, atol=1e-12)
    assert torch.equal(at.hessian, at.hessian.T)
    group_gradient = grad(data_energy(family, data[:7]))(flat)
    assert torch.allclose(family.group_gradient(posterior, data[:7]), group_gradient, rtol=0, atol=1e-12)


def test_the_likelihood_is_categorical_and_serves_torch_func() -> None:
    family, data = SoftmaxRegression(3, 4, 1.3, 2, 0), random_rows(20, 3, 4)
    thetas = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batched = vmap(lambda theta: family.log_likelihood(theta, data))(thetas)
    for theta, logs in zip(thetas, batched, strict=True):
        expected = Categorical(logits=data[:, :-1] @ theta.view(4, 3).T).log_prob(data[:, -1])
        assert torch.allclose(logs, expected, rtol=0, atol=1e-13)
    prior = torch.distributions.Normal(0.0, 1.3).log_prob(thetas[0]).sum()
    assert float(family.log_prior(thetas[0])) == pytest.approx(float(prior), rel=1e-6)
    assert family.parameter_count == 12


@pytest.mark.parametrize(("draws", "tolerance"), [(8, 2e-2), (24, 5e-3), (400, 2e-3)])
def test_frozen_noise_is_close_to_a_large_sample(draws: int, tolerance: float) -> None:
    family, data, posterior = (
        SoftmaxRegression(3, 4, 1.0, draws, 0),
        random_rows(100, 3, 4),
        random_posterior((4, 3), 2),
    )
    generator = torch.Generator().manual_seed(5)
    theta = posterior.mean + posterior.std * torch.randn(20_000, 4, 3, generator=generator, dtype=torch.float64)
    logs = torch.einsum("nd,tkd->tnk", data[:, :-1], theta).log_softmax(2)
    expected = -float(logs.gather(2, data[:, -1:].long().expand(len(theta), -1, 1)).sum()) / len(theta)
    assert float(data_energy(family, data)(posterior.flat())) == pytest.approx(expected, rel=tolerance)


def test_the_curvature_is_at_least_that_of_the_prior() -> None:
    family, data = SoftmaxRegression(3, 3, 0.7, 6, 0), random_rows(30, 3, 3, scale=3.0)
    for seed in range(20):
        at = family.expand(random_posterior((3, 3), seed, std=10.0 ** (seed % 4 - 2)), data)
        assert float(torch.linalg.eigvalsh(at.hessian)[0]) >= 0.7**-2 * (1 - 1e-9)


def test_training_reaches_the_same_minimum_from_any_start() -> None:
    family, data = SoftmaxRegression(3, 3, 1.0, 8, 0), random_rows(300, 3, 3)
    trained = train(family, data, family.initial(data, 0), tolerance=0.0)
    assert trained.gradient_norm < 1e-11
    for seed in range(3):
        elsewhere = train(family, data, random_posterior((3, 3), seed, std=2.0), tolerance=0.0).posterior
        assert torch.allclose(elsewhere.flat(), trained.posterior.flat(), rtol=0, atol=1e-12)


def ball_settings() -> list[tuple[SoftmaxRegression, MeanFieldGaussian, Tensor, float]]:
    settings = []
    for dimensions, classes, std, share, scale in [
        (1, 2, 0.3, 0.5, 1.0),
        (2, 3, 0.05, 0.9, 2.0),
        (2, 4, 1.0, 1e-3, 1.0),
        (3, 2, 0.5, 0.3, 0.3),
    ]:
        posterior = random_posterior((classes, dimensions), dimensions, std)
        family = SoftmaxRegression(dimensions, classes, 1.3, 4, 0)
        data = random_rows(25, dimensions, classes, 1, scale)
        settings.append((family, posterior, data, share * narrowest(posterior)))
    return settings


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), ball_settings())
def test_no_third_derivative_in_the_ball_exceeds_the_bound(
    family: SoftmaxRegression, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    whole, centre = scaled(posterior, with_prior(family, data_energy(family, data)))
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(whole, centre, radius) <= bound
    assert bound / 50 <= ascent_attack(whole, centre, radius) <= bound


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), ball_settings())
def test_the_bound_of_the_rows_alone_holds(
    family: SoftmaxRegression,
    posterior: MeanFieldGaussian,
    data: Tensor,
    radius: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    omit_prior(monkeypatch)
    rows, centre = scaled(posterior, data_energy(family, data))
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(rows, centre, radius) <= bound
    assert bound / 200 <= ascent_attack(rows, centre, radius) <= bound


@pytest.mark.parametrize("logit", [3.0, 6.0, 12.0])
def test_the_bound_of_the_rows_is_nearly_attained_where_p_is_confident(
    logit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two classes, one row, one pair of draws: the cumulant is (1-2p) ρ Var, so the bound is loose by 1-2p only."""
    omit_prior(monkeypatch)
    family, data = SoftmaxRegression(1, 2, 1.0, 2, 0), torch.tensor([[1.5, 0.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(
        torch.tensor([[logit / 1.5], [0.0]]).double(), torch.full((2, 1), 1e-9, dtype=torch.float64)
    )
    signs = frozen_noise_of(family)[0]
    along = torch.cat([torch.tensor([1.0, -1.0]).double(), torch.tensor([1.0, -1.0]).double() * signs]) / 2
    energy, centre = scaled(posterior, data_energy(family, data))
    reached = abs(float(third_derivative(energy, centre, along).detach()))
    bound = lipschitz(family, posterior, data, 0.0)
    assert reached <= bound
    assert reached == pytest.approx(math.tanh(logit / 2) * bound, rel=1e-4)


def test_a_third_cumulant_is_at_most_range_times_variance() -> None:
    """Check the two inequalities behind the bound on random distributions."""
    generator = torch.Generator().manual_seed(0)
    p = (5 * torch.randn(5000, 4, generator=generator, dtype=torch.float64)).softmax(1)
    b = torch.rand(5000, 4, generator=generator, dtype=torch.float64)
    spread = b - (p * b).sum(1, keepdim=True)
    third, variance = (p * spread**3).sum(1).abs(), (p * spread**2).sum(1)
    range_of_b = b.amax(1) - b.amin(1)
    assert bool((third <= range_of_b * variance * (1 + 1e-12)).all())
    assert bool((third <= range_of_b**3 / (6 * math.sqrt(3)) * (1 + 1e-12)).all())


def test_the_bound_on_a_ball_covers_the_bounds_at_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ball is so wide that the bound at its centre would be exceeded."""
    omit_prior(monkeypatch)
    family, data = SoftmaxRegression(1, 2, 1.3, 2, 0), torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(torch.zeros((2, 1)).double(), torch.full((2, 1), 2.0, dtype=torch.float64))
    within = largest_bound_within(family, posterior, data, 1.0)
    assert 1.1 * lipschitz(family, posterior, data, 0.0) < within <= lipschitz(family, posterior, data, 1.0)


def test_the_bound_grows_with_the_ball_and_is_infinite_where_a_std_reaches_zero() -> None:
    family, posterior, data, _ = ball_settings()[0]
    smallest = narrowest(posterior)
    bounds = [lipschitz(family, posterior, data, share * smallest) for share in (0.0, 0.2, 0.5, 0.9)]
    assert bounds == sorted(bounds)
    assert math.isfinite(bounds[-1])
    assert lipschitz(family, posterior, data, smallest) == math.inf
    assert lipschitz(family, posterior, data, math.nan) == math.inf
    wide = MeanFieldGaussian(posterior.mean, 1e6 * posterior.std)
    assert lipschitz(family, wide, data, 1e5) == math.inf


def rounding_errors(family: SoftmaxRegression, posterior: MeanFieldGaussian, data: Tensor) -> tuple[float, float]:
    """Return the differences of the computed gradient and Hessian from the same formulas in fifty digits."""
    at, half, dims = family.expand(posterior, data), family.parameter_count, family.dimensions
    flat = [mpmath.mpf(value) for value in posterior.flat().tolist()]
    precision = 1 / mpmath.mpf(family.prior_std) ** 2
    gradient = [precision * value - (1 / value if i >= half else 0) for i, value in enumerate(flat)]
    curvature = mpmath.diag([precision + (1 / value**2 if i >= half else 0) for i, value in enumerate(flat)])
    owner = [(i % half) // dims for i in range(2 * half)]
    for epsilon in frozen_noise_of(family).tolist():
        for *features, label in data.tolist():
            a = [mpmath.mpf(features[i % dims]) * (epsilon[i - half] if i >= half else 1) for i in range(2 * half)]
            logits = [sum(a[i] * flat[i] for i in range(2 * half) if owner[i] == k) for k in range(family.classes)]
            p = [mpmath.exp(z) / sum(mpmath.exp(other) for other in logits) for z in logits]
            for i in range(2 * half):
                gradient[i] += (p[owner[i]] - (owner[i] == label)) * a[i] / family.draws
                for j in range(2 * half):
                    weight = p[owner[i]] * ((owner[i] == owner[j]) - p[owner[j]])
                    curvature[i, j] += weight * a[i] * a[j] / family.draws
    return expansion_errors(at, gradient, curvature)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e6])
def test_rounding_stays_within_its_a_priori_bound(scale: float) -> None:
    """Two almost equal columns with large, opposite weights: the logits are small differences of large numbers.

    The prior is wide, so that its own rounding is negligible.
    """
    family, data, posterior = (
        SoftmaxRegression(2, 3, 1e3 * scale, 4, 0),
        random_rows(10, 2, 3),
        random_posterior((3, 2), 5),
    )
    data[:, 1] = data[:, 0] * (1 + data[:, 1] / scale)
    posterior = MeanFieldGaussian(posterior.mean + scale * torch.tensor([1.0, -1.0]).double(), posterior.std)
    rounding = family.expand(posterior, data).rounding
    with mpmath.workdps(50):
        lost, lost_curvature = rounding_errors(family, posterior, data)
    assert 0 < lost <= rounding.gradient + rounding.gradient_anywhere < 1e5 * lost
    assert 0 < lost_curvature <= rounding.hessian < 1e5 * lost_curvature
    if scale == 1e6:
        assert lost > 1e-11  # not only rounding of a sum: the logits themselves have lost digits


def test_a_row_does_not_change_along_the_invariant_directions() -> None:
    family, data, posterior = SoftmaxRegression(2, 3, 1.3, 4, 0), random_rows(10, 2, 3), random_posterior((3, 2), 5)
    directions = family.invariant_directions(posterior)
    assert torch.allclose(directions.T @ directions, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-15)
    rows, centre = scaled(posterior, data_energy(family, data))
    for direction in directions.T:
        assert float(rows(centre + 3 * direction)) == pytest.approx(float(rows(centre)), rel=1e-13)
    bound = family.third_derivative_bound(posterior, data, 0.1) - torch.diag(
        torch.cat([torch.zeros(6).double(), WeightPrior(1.3).third_derivative(posterior, 0.1)])
    )
    assert torch.allclose(bound @ directions, torch.zeros(12, 2, dtype=torch.float64), rtol=0, atol=1e-9)


def test_centring_leaves_no_rounding_along_the_invariant_directions() -> None:
    """A gradient is off along them and elsewhere: what is left along them is within the bound, the rest no larger."""
    family, posterior = SoftmaxRegression(2, 3, 1.3, 4, 0), random_posterior((3, 2), 5)
    generator, scale = torch.Generator().manual_seed(0), width_scale(posterior)
    error = 1e-9 * torch.randn(3, 2, generator=generator, dtype=torch.float64)
    exact = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    exact -= exact.mean(0)
    gradient = exact + error
    bound = softmax._centre(gradient, scale)
    left = torch.cat([(scale * (gradient - exact)).flatten(), torch.zeros(6).double()])
    along = family.invariant_directions(posterior).T @ left
    assert float(along.norm()) <= bound < 1e-14
    assert float(left.norm()) <= float((scale * error).norm()) + bound


def test_the_rounding_bound_is_infinite_where_logits_have_no_digits_left() -> None:
    family, posterior = SoftmaxRegression(2, 3, 1.3, 4, 0), random_posterior((3, 2), 5)
    assert family.expand(posterior, random_rows(12, 2, 3, scale=1e13)).rounding.hessian == math.inf


def test_certificates_hold_against_retraining_and_are_tight() -> None:
    ratios = certified_ratios(SoftmaxRegression(4, 3, 1.0, 8, 0), random_rows(600, 4, 3), 0.01, 1e-3, range(11))
    assert sorted(ratios)[5] <= 1.5


def test_forgetting_a_whole_class_equals_retraining() -> None:
    family, data = SoftmaxRegression(3, 4, 1.0, 8, 0), random_rows(300, 3, 4)
    start, forgotten = family.initial(data, 0), data[:, -1] == 2
    posterior = train(family, data, start, tolerance=0.0).posterior
    retrained = train(family, data[~forgotten], start, tolerance=0.0).posterior
    outcome = forget(family, posterior, data, forgotten.nonzero().flatten(), Policy(1e-13))
    assert outcome.certificate.level == "proved"
    assert posterior.kl(retrained) > 1
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-13


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    family, data, posterior = SoftmaxRegression(3, 3, 1.0, 4, 0), random_rows(100, 3, 3), random_posterior((3, 3), 1)
    whole, whole_bound = family.expand(posterior, data), lipschitz(family, posterior, data, 1e-2)
    whole_group = family.group_gradient(posterior, data)
    monkeypatch.setattr(softmax, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(softmax, "_BLOCK_DRAWS", 3)
    parts = family.expand(posterior, data)
    assert parts.energy == pytest.approx(whole.energy, rel=1e-13)
    assert torch.allclose(parts.gradient, whole.gradient, rtol=0, atol=1e-12)
    assert torch.allclose(parts.hessian, whole.hessian, rtol=0, atol=1e-12)
    assert torch.allclose(family.group_gradient(posterior, data), whole_group, rtol=0, atol=1e-12)
    assert lipschitz(family, posterior, data, 1e-2) == pytest.approx(whole_bound, rel=1e-12)


def test_it_is_built_by_name() -> None:
    config = {"dimensions": 2, "classes": 3, "prior_std": 1.0}
    assert build("softmax-regression", {**config, "draws": 4, "seed": 3}) == SoftmaxRegression(2, 3, 1.0, 4, 3)
    assert build("softmax-regression", config) == SoftmaxRegression(2, 3, 1.0, 64, 0)


def test_its_noise_can_be_exchanged_and_is_named() -> None:
    family = SoftmaxRegression(2, 3, 1.0, 4, 3)
    assert isinstance(family, FrozenNoiseFamily)
    assert family.with_noise(8, 5) == SoftmaxRegression(2, 3, 1.0, 8, 5)
    assert "4 frozen noise draws (seed 3)" in family.energy_name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3, 1.0, 4, 0), "dimensions is 0"),
        ((2, 1, 1.0, 4, 0), "classes is 1: pass a whole number of at least 2"),
        ((2, 3, math.inf, 4, 0), "prior_std is inf"),
        ((2, 3, 1.0, 5, 0), "draws is 5: pass an even number"),
        ((2, 3, 1.0, -2, 0), "draws is -2"),
        ((2, 3, 1.0, 4, True), "seed is True"),
    ],
)
def test_a_wrong_configuration_is_invalid_input(arguments: tuple[int, int, float, int, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SoftmaxRegression(*arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(10, 2, dtype=torch.float64), "rows of 3 columns"),
        (torch.zeros(10, 3), "float64"),
        (torch.zeros(0, 3, dtype=torch.float64), "no rows"),
        (torch.full((10, 3), math.inf, dtype=torch.float64), "infinity"),
        (torch.tensor([[0.0, 0.0, 3.0]], dtype=torch.float64), "row 0 has the label 3.0.*from 0 to 2"),
        (torch.tensor([[0.0, 0.0, 1.5]], dtype=torch.float64), "row 0 has the label 1.5"),
    ],
)
def test_data_that_cannot_be_modelled_is_invalid_input(data: Tensor, message: str) -> None:
    family = SoftmaxRegression(2, 3, 1.0, 4, 0)
    with pytest.raises(InvalidInput, match=message):
        family.check_data(data)
    with pytest.raises(InvalidInput, match=message):
        family.initial(data, 0)


def test_a_posterior_of_another_model_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match=r"needs \(3, 2\)"):
        SoftmaxRegression(2, 3, 1.0, 4, 0).check_posterior(random_posterior((2, 3), 0))
