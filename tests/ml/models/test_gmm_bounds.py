"""Attacks on the bounds: random points and directions, gradient ascent, and arithmetic in fifty digits."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from ml.models import gmm_bounds
from ml.models.family import width_scale
from ml.models.gmm import GaussianMixture
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import data_energy, energy, random_posterior
from tests.ml.models.attacks import (
    Energy,
    ascent_attack,
    expansion_errors,
    largest_bound_within,
    lipschitz,
    narrowest,
    omit_prior,
    random_attack,
    scaled,
    third_derivative,
)

Setting = tuple[GaussianMixture, MeanFieldGaussian, Tensor, float]


def setting(components: int, dimensions: int, std: float, share: float) -> Setting:
    """Return overlapping components, few rows, and a ball whose radius is `share` of the smallest scaled width."""
    generator = torch.Generator().manual_seed(components * 100 + dimensions)
    posterior = random_posterior(components, dimensions, generator, std)
    data = 1.5 * torch.randn(25, dimensions, generator=generator, dtype=torch.float64)
    return GaussianMixture(components, dimensions, 1.3), posterior, data, share * narrowest(posterior)


def distant(mean: float, std: float, radius: float) -> Setting:
    """Return distant components with rows between them: cubes of distances dominate, responsibilities change fast."""
    posterior = MeanFieldGaussian(
        torch.tensor([[-mean], [mean]], dtype=torch.float64), torch.full((2, 1), std, dtype=torch.float64)
    )
    data = torch.linspace(0.1, 0.3, 4, dtype=torch.float64).reshape(-1, 1)
    return GaussianMixture(2, 1, 1.3), posterior, data, radius


def near(std: float, radius: float) -> Setting:
    """Return two almost equal components with rows midway: the covariance outweighs the third cumulant."""
    posterior = MeanFieldGaussian(
        torch.tensor([[-0.05], [0.05]]).double(), torch.full((2, 1), std, dtype=torch.float64)
    )
    return GaussianMixture(2, 1, 1.3), posterior, torch.zeros(3, 1, dtype=torch.float64), radius


SETTINGS = [
    distant(4.0, 0.1, 1e-2),
    distant(6.0, 1.0, 0.1),
    near(0.3, 4e-3),
    setting(2, 1, 0.3, 0.5),
    setting(2, 2, 0.05, 0.9),
    setting(3, 2, 0.3, 1e-3),
    setting(4, 3, 0.5, 0.3),
]


def rows_energy(family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor) -> tuple[Energy, Tensor]:
    """Return the rows' part of the energy in scaled coordinates, and the posterior in them."""
    return scaled(posterior, lambda flat: data_energy(family, flat, data))


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), SETTINGS)
def test_no_third_derivative_in_the_ball_exceeds_the_bound(
    family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    whole, centre = scaled(posterior, lambda flat: energy(family, flat, data))
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(whole, centre, radius) <= bound
    assert ascent_attack(whole, centre, radius) <= bound


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), SETTINGS)
def test_the_bound_of_the_rows_alone_holds(
    family: GaussianMixture,
    posterior: MeanFieldGaussian,
    data: Tensor,
    radius: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    omit_prior(monkeypatch)
    rows, centre = rows_energy(family, posterior, data)
    bound = lipschitz(family, posterior, data, radius)
    assert 0 < random_attack(rows, centre, radius) <= bound
    # The attack succeeds, so the bound is not vacuous.
    assert bound / 200 <= ascent_attack(rows, centre, radius) <= bound


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), SETTINGS)
def test_the_bound_on_a_ball_covers_the_bounds_at_its_points(
    family: GaussianMixture,
    posterior: MeanFieldGaussian,
    data: Tensor,
    radius: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    omit_prior(monkeypatch)
    radius = min(radius, 0.05)  # further away, some widths have another scale
    assert largest_bound_within(family, posterior, data, radius) <= lipschitz(family, posterior, data, radius)


def test_wider_stds_in_the_ball_are_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the lengths |u_k| grow with s by more than the allowance for moving responsibilities."""
    omit_prior(monkeypatch)
    family, posterior, data, radius = near(0.18, 0.7)
    wider = MeanFieldGaussian(posterior.mean, posterior.std + 0.25 * radius / math.sqrt(2))
    assert torch.equal(width_scale(wider), width_scale(posterior))
    at_the_edge, at_the_centre = lipschitz(family, wider, data, 0.0), lipschitz(family, posterior, data, 0.0)
    assert 1.5 * at_the_centre < at_the_edge <= lipschitz(family, posterior, data, radius)


def test_components_of_different_widths_are_weighed_by_their_own() -> None:
    """A component of few rows is wide. Its scale must not enter the other's coefficient."""
    family = GaussianMixture(2, 1, 1.3)
    posterior = MeanFieldGaussian(torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[2.0**-6], [1.0]]).double())
    data = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(-1, 1)
    rows, centre = rows_energy(family, posterior, data)
    narrow = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    along = abs(float(third_derivative(rows, centre, narrow).detach()))
    p = torch.cat([2.0**-6 * (data.square() + 2.0**-12).sqrt(), ((data - 1).square() + 1).sqrt()], 1)
    phi = (-0.5 * torch.cat([data.square() + 2.0**-12, (data - 1).square() + 1], 1)).softmax(1)
    pairs = 2 * phi[:, 0] * phi[:, 1]
    coefficient = pairs @ (math.sqrt(2) * (p**3).sum(1) + 1.5 * 2.0**-12 * p.sum(1)) + 2
    other = pairs @ (math.sqrt(2) * (p**3).sum(1) + 1.5 * p.sum(1)) + 2
    assert along < float(coefficient) < float(other)
    assert lipschitz(family, posterior, data, 0.0) == pytest.approx(float(other), rel=1e-9)


def test_the_prior_part_is_reached() -> None:
    """With rows that one component owns, the third derivative is that of -log s, at the edge of the ball."""
    family = GaussianMixture(1, 1, 1.0)
    posterior = MeanFieldGaussian(torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 0.4, dtype=torch.float64))
    data = torch.zeros(3, 1, dtype=torch.float64)
    whole, centre = scaled(posterior, lambda flat: energy(family, flat, data))
    direction = torch.tensor([0.0, 1.0], dtype=torch.float64)
    reached = abs(float(third_derivative(whole, centre - 0.1 * direction, direction).detach()))
    assert lipschitz(family, posterior, data, 0.1) == pytest.approx(reached, rel=1e-9)


def test_the_bound_grows_with_the_ball_and_ends_where_a_std_reaches_zero() -> None:
    family, posterior, data, _ = SETTINGS[2]
    smallest = narrowest(posterior)
    bounds = [lipschitz(family, posterior, data, share * smallest) for share in (0.0, 0.2, 0.5, 0.9)]
    assert bounds == sorted(bounds)
    assert math.isfinite(bounds[-1])
    assert lipschitz(family, posterior, data, smallest) == math.inf
    assert lipschitz(family, posterior, data, math.nan) == math.inf


@pytest.mark.parametrize("components", [2, 2000])
def test_the_spread_covers_the_rounding_of_a_sum_over_components(components: int) -> None:
    """One component owns the row, so that the sum cancels: what is left is below the rounding of K terms."""
    generator = torch.Generator().manual_seed(0)
    phi = (80 * torch.rand(components, 50, generator=generator, dtype=torch.float64)).softmax(0)
    z = 10 ** torch.randn(components, 50, generator=generator, dtype=torch.float64)
    bound = gmm_bounds._spread(phi, z)
    with mpmath.workdps(50):
        for row in range(0, 50, 10):
            weights = [mpmath.mpf(value) for value in phi[:, row].tolist()]
            total, sizes = sum(weights), [mpmath.mpf(value) for value in z[:, row].tolist()]
            mean = sum(weight * size for weight, size in zip(weights, sizes, strict=True)) / total
            for k in (0, int(phi[:, row].argmax())):
                share = weights[k] / total
                assert mpmath.mpf(float(bound[k, row])) >= sizes[k] + mean - 2 * share * sizes[k]


def rounding_errors(family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor) -> tuple[float, float]:
    """Return the differences of the computed gradient and Hessian from the same formulas in fifty digits."""
    at = family.expand(posterior, data)
    exact = [mpmath.mpf(value) for value in posterior.flat().tolist()]
    half, dims, size = len(exact) // 2, family.dimensions, len(exact)
    precision = 1 / mpmath.mpf(family.prior_std) ** 2
    gradient = [precision * value - (1 / value if i >= half else 0) for i, value in enumerate(exact)]
    curvature = mpmath.matrix(size, size)
    for i in range(size):
        curvature[i, i] = precision + (1 / exact[i] ** 2 if i >= half else 0)
    for row in data.tolist():
        u = [mpmath.mpf(row[i % dims]) - exact[i] if i < half else -exact[i] for i in range(size)]
        owner = [(i % half) // dims for i in range(size)]
        weights = [
            mpmath.exp(-sum(u[i] ** 2 for i in range(size) if owner[i] == k) / 2) for k in range(family.components)
        ]
        phi = [weight / sum(weights) for weight in weights]
        for i in range(size):
            gradient[i] -= phi[owner[i]] * u[i]
            curvature[i, i] += phi[owner[i]]
            for j in range(size):
                product = phi[owner[i]] * u[i] * u[j]
                curvature[i, j] += product * phi[owner[j]] - (product if owner[i] == owner[j] else 0)
    return expansion_errors(at, gradient, curvature)


@pytest.mark.parametrize("apart", [1.0, 1e2, 1e4])
def test_rounding_stays_within_its_a_priori_bound(apart: float) -> None:
    """Rows half-way between two distant components: the exponents are large, and so is what their rounding does."""
    family, posterior, data, _ = setting(2, 2, 0.3, 0.5)
    away = torch.tensor([[apart, 0.0], [-apart, 0.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(posterior.mean / apart + away, posterior.std)
    rounding = family.expand(posterior, data / apart).rounding
    with mpmath.workdps(50):
        lost, lost_curvature = rounding_errors(family, posterior, data / apart)
    assert 0 < lost <= rounding.gradient < 1e5 * lost
    assert 0 < lost_curvature <= rounding.hessian < 1e5 * lost_curvature
    if apart == 1e4:
        assert lost > 1e-7  # not only rounding of a sum: the responsibilities themselves have lost digits
        assert lost_curvature > 1e-3


def row_derivatives(phi: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ φ_k u_k and the Hessian, for one row with responsibilities φ and u (K, 2d)."""
    blocks = torch.block_diag(*(weight * torch.eye(u.shape[1], dtype=torch.float64) for weight in phi))
    spread = torch.block_diag(*(weight * torch.outer(part, part) for weight, part in zip(phi, u, strict=True)))
    mean = (phi.unsqueeze(1) * u).flatten()
    return mean, blocks - spread + torch.outer(mean, mean)


@pytest.mark.parametrize("seed", range(5))
def test_no_error_of_the_exponents_exceeds_the_noise_of_the_responsibilities(seed: int) -> None:
    """Each exponent of one row moves by up to 1e-6 (1 + |u_k|²)."""
    family, posterior, data, _ = setting(4, 3, 0.5, 0.3)
    ((_, chunk),) = family.responsibilities(posterior, data[seed : seed + 1])
    gradient_noise, hessian_noise = gmm_bounds.responsibility_noise(chunk).tolist()
    u, phi = torch.cat([chunk.offsets[:, :, 0], -posterior.std], 1), chunk.phi[:, 0]
    gradient, hessian = row_derivatives(phi, u)
    sizes, generator = 1e-6 * (1 + chunk.squared_norms[:, 0]), torch.Generator().manual_seed(seed)
    largest = 0.0
    for _ in range(20):
        signs = 2 * torch.randint(0, 2, (4,), generator=generator).double() - 1
        moved_gradient, moved_hessian = row_derivatives((phi.log() + signs * sizes).softmax(0), u)
        largest = max(largest, float((moved_gradient - gradient).norm()))
        assert float(torch.linalg.matrix_norm(moved_hessian - hessian, 2)) <= 1.001e-6 * hessian_noise
    assert 1e-6 * gradient_noise / 50 < largest <= 1.001e-6 * gradient_noise


def test_rows_that_one_component_owns_lose_few_digits() -> None:
    """Exponents of 1e8 are off by 1e-7, which changes no responsibility of 0 or 1."""
    family = GaussianMixture(2, 1, 1e5)
    data = torch.cat([torch.full((50, 1), side, dtype=torch.float64) for side in (-1e4, 1e4)])
    posterior = MeanFieldGaussian(data[[0, -1]] * (1 - 2e-12), torch.full((2, 1), 50**-0.5, dtype=torch.float64))
    rounding = family.expand(posterior, data).rounding
    assert 0 < rounding.gradient < 1e-11
    assert 0 < rounding.hessian < 1e-11


def test_the_rounding_bound_is_infinite_where_exponents_have_no_digits_left() -> None:
    family, posterior, data, _ = SETTINGS[2]
    assert family.expand(posterior, data + 1e8).rounding.hessian == math.inf
