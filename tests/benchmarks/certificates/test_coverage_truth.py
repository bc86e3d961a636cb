from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.certificates.coverage_truth import (
    Affine,
    KnownPosterior,
    divergence_by_quadrature,
    gaussian_divergence,
    picked_divergence,
)
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.logistic import LogisticRegression
from ml.models.potential import Potential
from tests.ml.likelihoods import LinearRegression, regression_data

LOGISTIC = LogisticRegression(2, prior_std=1.0)


def fit_posterior(likelihood: Likelihood, rows: Tensor) -> KnownPosterior:
    potential = Potential(likelihood, rows)
    return KnownPosterior(potential, fit_laplace(potential, rows.new_zeros(likelihood.parameter_count)))


def a_map(before: KnownPosterior, after: KnownPosterior) -> Affine:
    """One that changes place and width, neither of them right."""
    d = len(before.laplace.mode)
    bend = torch.eye(d, dtype=torch.float64) + 0.1 * torch.arange(d * d, dtype=torch.float64).reshape(d, d) / d**2
    return Affine(bend, before.laplace.mode, after.laplace.mode + 0.02)


def logistic_rows(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.rand(n, generator=generator, dtype=torch.float64) < (x @ torch.tensor([1.0, -0.5]).double()).sigmoid()
    return torch.cat([x, y.double().unsqueeze(1)], 1)


def test_a_map() -> None:
    affine = Affine(
        torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=torch.float64),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
        torch.tensor([-1.0, 0.5], dtype=torch.float64),
    )
    theta = torch.tensor([[1.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    assert affine.forwards(theta).tolist() == [[-1.0, 0.5], [2.0, 3.5]]
    assert affine.log_det == pytest.approx(torch.tensor(6.0).double().log().item())
    assert torch.allclose(affine.backwards(affine.forwards(theta)), theta)


def test_maps_one_after_another_are_a_map() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (
        Affine(*(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 2), (2,), (2,))))
        for _ in range(2)
    )
    theta = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    composed = first.followed_by(second)
    assert torch.allclose(composed.forwards(theta), second.forwards(first.forwards(theta)))
    assert composed.log_det == pytest.approx(first.log_det + second.log_det)


@pytest.mark.parametrize("d", [2, 3])
def test_on_gaussians_quadrature_is_the_closed_form(d: int) -> None:
    likelihood, data = LinearRegression(d), regression_data(80, d, torch.Generator().manual_seed(d))
    before, after = fit_posterior(likelihood, data), fit_posterior(likelihood, data[15:])
    closed = gaussian_divergence(before, after, a_map(before, after))
    assert closed > 1e-3
    assert divergence_by_quadrature(before, after, a_map(before, after)) == pytest.approx(closed, rel=1e-8)


def test_on_a_logistic_regression_quadrature_is_what_a_large_sample_says() -> None:
    """Independent proposals of the Laplace fit, weighed: an expectation over p(θ|S) within half a percent or so."""
    rows = logistic_rows(120)
    before, after = fit_posterior(LOGISTIC, rows), fit_posterior(LOGISTIC, rows[30:])
    moved_by = a_map(before, after)
    noise = torch.randn(40_000, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    theta = before.from_white(noise)
    mass = torch.softmax(0.5 * noise.square().sum(1) - before.values(theta), 0)
    log_w = before.values(theta) - after.values(moved_by.forwards(theta))
    log_mean = torch.logsumexp(log_w + mass.log(), 0)
    sampled = float(log_mean - mass.dot(log_w))
    divergence = divergence_by_quadrature(before, after, moved_by)
    assert divergence > 0.01
    assert divergence == pytest.approx(sampled, rel=0.03)


@pytest.mark.parametrize("d", [2, 3])
def test_a_picked_draw_of_gaussians_for_many_draws(d: int) -> None:
    """N E_R log(1 + (w-1)/N) tends to χ² = |A| |B|^(-½) |2A-B|^(-½) exp(δᵀ A (2A-B)⁻¹ B δ) - 1."""
    likelihood, data = LinearRegression(d), regression_data(80, d, torch.Generator().manual_seed(d))
    before, after = fit_posterior(likelihood, data), fit_posterior(likelihood, data[12:])
    stays = Affine(torch.eye(d, dtype=torch.float64), before.laplace.mode, before.laplace.mode)
    a, b, gap = after.laplace.hessian, before.laplace.hessian, after.laplace.mode - before.laplace.mode
    c = 2 * a - b
    log_factor = torch.logdet(a) - torch.logdet(b) / 2 - torch.logdet(c) / 2
    chi_square = torch.expm1(log_factor + gap @ a @ torch.linalg.solve(c, b @ gap))
    assert float(chi_square) > 0.05
    assert picked_divergence(before, after, stays, 1e9) == pytest.approx(float(chi_square) / 1e9, rel=1e-5)
    assert picked_divergence(before, after, stays, 10.0) < torch.log1p(chi_square / 10)


def test_a_picked_draw_where_chi_square_is_infinite() -> None:
    """Draws half as wide as they should be: w grows as e^(3z²/2), and log w is what counts."""
    likelihood, data = LinearRegression(2), regression_data(80, 2, torch.Generator().manual_seed(1))
    posterior = fit_posterior(likelihood, data)
    half = Affine(torch.eye(2, dtype=torch.float64) / 2, posterior.laplace.mode, posterior.laplace.mode)
    assert 0.001 < picked_divergence(posterior, posterior, half, 1000.0) < 0.5
