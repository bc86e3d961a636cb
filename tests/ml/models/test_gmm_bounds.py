"""Attacks on the bounds: random points and directions, gradient ascent, and arithmetic in fifty digits."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from ml.models.gmm import GaussianMixture
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import data_energy, energy, random_posterior

Setting = tuple[GaussianMixture, MeanFieldGaussian, Tensor, float]


def setting(components: int, dimensions: int, std: float, share: float) -> Setting:
    """Return overlapping components, few rows, and a ball whose radius is `share` of the smallest std."""
    generator = torch.Generator().manual_seed(components * 100 + dimensions)
    posterior = random_posterior(components, dimensions, generator, std)
    data = 1.5 * torch.randn(25, dimensions, generator=generator, dtype=torch.float64)
    return GaussianMixture(components, dimensions, 1.3), posterior, data, share * float(posterior.std.min())


def distant(mean: float, std: float, radius: float) -> Setting:
    """Return distant components with rows between them: cubes of distances dominate, responsibilities change fast."""
    posterior = MeanFieldGaussian(
        torch.tensor([[-mean], [mean]], dtype=torch.float64), torch.full((2, 1), std, dtype=torch.float64)
    )
    data = torch.linspace(0.1, 0.3, 4, dtype=torch.float64).reshape(-1, 1)
    return GaussianMixture(2, 1, 1.3), posterior, data, radius


def near(radius: float) -> Setting:
    """Return two almost equal components with rows midway: the covariance outweighs the third cumulant."""
    posterior = MeanFieldGaussian(
        torch.tensor([[-0.05], [0.05]]).double(), torch.full((2, 1), 0.3, dtype=torch.float64)
    )
    return GaussianMixture(2, 1, 1.3), posterior, torch.zeros(3, 1, dtype=torch.float64), radius


SETTINGS = [
    distant(4.0, 0.1, 1e-3),
    distant(6.0, 1.0, 0.1),
    near(1e-3),
    setting(2, 1, 0.3, 0.5),
    setting(2, 2, 0.05, 0.9),
    setting(3, 2, 0.3, 1e-3),
    setting(4, 3, 0.5, 0.3),
]


def prior_part(posterior: MeanFieldGaussian, radius: float) -> float:
    return 2 / (float(posterior.std.min()) - radius) ** 3


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def third_derivatives(family: GaussianMixture, point: Tensor, direction: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return d³/dt³ along the direction, of the rows' part of the energy and of the whole energy."""
    results = []
    for function in (data_energy, energy):
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        value = function(family, point + t * direction, data)
        for _ in range(3):
            (value,) = torch.autograd.grad(value, t, create_graph=True)
        results.append(value)
    return results[0], results[1]


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), SETTINGS)
def test_no_random_third_derivative_in_the_ball_exceeds_the_bound(
    family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = family.lipschitz(posterior, data, radius)
    rows = whole - prior_part(posterior, radius)
    flat = posterior.flat()
    for _ in range(60):
        direction = unit(torch.randn(len(flat), generator=generator, dtype=torch.float64))
        offset = unit(torch.randn(len(flat), generator=generator, dtype=torch.float64))
        length = radius * float(torch.rand((), generator=generator))
        rows_value, whole_value = third_derivatives(family, flat + length * offset, direction, data)
        assert abs(float(rows_value.detach())) <= rows
        assert abs(float(whole_value.detach())) <= whole


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), SETTINGS)
def test_ascent_on_point_and_direction_does_not_exceed_the_bound(
    family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = family.lipschitz(posterior, data, radius) - prior_part(posterior, radius)
    flat, largest = posterior.flat(), 0.0
    for _ in range(4):
        direction = unit(torch.randn(len(flat), generator=generator, dtype=torch.float64))
        offset = torch.zeros_like(flat)
        for _ in range(40):
            direction.requires_grad_()
            offset.requires_grad_()
            rows_value, _ = third_derivatives(family, flat + offset, unit(direction), data)
            largest = max(largest, abs(float(rows_value.detach())))
            up_direction, up_offset = torch.autograd.grad(rows_value, (direction, offset))
            direction = unit(direction.detach() + 0.3 * unit(up_direction))
            offset = offset.detach() + 0.2 * radius * unit(up_offset)
            offset = offset * min(1.0, radius / float(offset.norm()))
    assert largest <= rows
    assert largest >= rows / 200  # the attack succeeds, so the bound is not vacuous


@pytest.mark.parametrize(("family", "posterior", "data", "radius"), SETTINGS)
def test_the_bound_on_a_ball_covers_the_bounds_at_its_points(
    family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor, radius: float
) -> None:
    generator = torch.Generator().manual_seed(2)
    whole = family.lipschitz(posterior, data, radius) - prior_part(posterior, radius)
    size = posterior.std.numel()
    aside = unit(torch.cat([torch.ones(size), torch.zeros(size)]).double())
    offsets = [unit(torch.randn(2 * size, generator=generator, dtype=torch.float64)) for _ in range(50)]
    for offset in [aside, -aside, *offsets]:
        moved = posterior.with_flat(posterior.flat() + radius * offset)
        assert family.lipschitz(moved, data, 0.0) - prior_part(moved, 0.0) <= whole


def test_wider_stds_in_the_ball_are_covered() -> None:
    """Here the lengths |u_k| grow with s by more than the allowance for moving responsibilities."""
    family, posterior, data, radius = near(0.27)
    wider = MeanFieldGaussian(posterior.mean, posterior.std + radius / math.sqrt(2))
    at_the_edge = family.lipschitz(wider, data, 0.0) - prior_part(wider, 0.0)
    on_the_ball = family.lipschitz(posterior, data, radius) - prior_part(posterior, radius)
    assert at_the_edge <= on_the_ball


def test_the_prior_part_is_reached() -> None:
    """With rows that one component owns, the third derivative is that of -log s, at the edge of the ball."""
    family = GaussianMixture(1, 1, 1.0)
    posterior = MeanFieldGaussian(torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 0.5, dtype=torch.float64))
    data = torch.zeros(3, 1, dtype=torch.float64)
    edge, direction = torch.tensor([0.0, 0.4], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    _, whole_value = third_derivatives(family, edge, direction, data)
    assert family.lipschitz(posterior, data, 0.1) == pytest.approx(abs(float(whole_value.detach())), rel=1e-9)


def test_the_bound_grows_with_the_ball_and_ends_where_a_std_reaches_zero() -> None:
    family, posterior, data, _ = SETTINGS[2]
    smallest = float(posterior.std.min())
    bounds = [family.lipschitz(posterior, data, share * smallest) for share in (0.0, 0.2, 0.5, 0.9)]
    assert bounds == sorted(bounds)
    assert math.isfinite(bounds[-1])
    assert family.lipschitz(posterior, data, smallest) == math.inf
    assert family.lipschitz(posterior, data, math.nan) == math.inf


def rounding_errors(family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor) -> tuple[Tensor, Tensor]:
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
    gradient_error = [float(mpmath.mpf(a) - b) for a, b in zip(at.gradient.tolist(), gradient, strict=True)]
    hessian_error = [
        [float(mpmath.mpf(float(at.hessian[i, j])) - curvature[i, j]) for j in range(size)] for i in range(size)
    ]
    return torch.tensor(gradient_error, dtype=torch.float64), torch.tensor(hessian_error, dtype=torch.float64)


@pytest.mark.parametrize("apart", [1.0, 1e2, 1e4])
def test_rounding_stays_within_its_a_priori_bound(apart: float) -> None:
    """Rows half-way between two distant components: the exponents are large, and so is what their rounding does."""
    family, posterior, data, _ = setting(2, 2, 0.3, 0.5)
    away = torch.tensor([[apart, 0.0], [-apart, 0.0]], dtype=torch.float64)
    posterior = MeanFieldGaussian(posterior.mean / apart + away, posterior.std)
    rounding = family.expand(posterior, data / apart).rounding
    with mpmath.workdps(50):
        gradient_error, hessian_error = rounding_errors(family, posterior, data / apart)
    lost, lost_curvature = float(gradient_error.norm()), float(torch.linalg.matrix_norm(hessian_error, 2))
    assert 0 < lost <= rounding.gradient < 1e5 * lost
    assert 0 < lost_curvature <= rounding.hessian < 1e5 * lost_curvature
    if apart == 1e4:
        assert lost > 1e-7  # not only rounding of a sum: the responsibilities themselves have lost digits
        assert lost_curvature > 1e-3


def test_the_rounding_bound_is_infinite_where_exponents_have_no_digits_left() -> None:
    family, posterior, data, _ = SETTINGS[2]
    assert family.expand(posterior, data + 1e8).rounding.hessian == math.inf
