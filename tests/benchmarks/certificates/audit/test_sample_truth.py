from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.certificates.audit.extended import Array
from benchmarks.certificates.audit.sample_truth import (
    AffineMap,
    Regression,
    divergences,
    fit_map,
    picked_divergence,
    sample,
)


def regression(n: int, p: int, noise_std: float | None, prior_std: float = 1.0) -> Regression:
    rng = np.random.default_rng(n + p)
    features = rng.normal(size=(n, p))
    signal = features.sum(1)
    target = signal + rng.normal(size=n) if noise_std else (signal > rng.logistic(size=n)).astype(float)
    return Regression(np.column_stack([features, target]), prior_std, noise_std)


def bend(posterior: Regression) -> AffineMap:
    """Widen the posterior a little and move it by a fifth of its width."""
    mode, hessian = posterior.mode()
    slope = 1.03 * np.eye(len(mode))
    return AffineMap(slope, mode - slope @ mode + 0.2 / np.sqrt(hessian.diagonal()))


def estimate(before: Regression, after: Regression, moved_by: AffineMap, draws: Array) -> tuple[float, float]:
    log_w = before.potential(draws) - after.potential(moved_by(draws)) + moved_by.log_det
    w = np.exp(log_w - log_w.max())
    return math.log(w.mean()) - float((log_w - log_w.max()).mean()), float((w**2).mean() / w.mean() ** 2 - 1)


@pytest.mark.parametrize("noise_std", [0.8, None])
def test_the_mode_is_the_least_potential(noise_std: float | None) -> None:
    posterior = regression(40, 3, noise_std)
    mode, hessian = posterior.mode()
    steps = 1e-3 * np.concatenate([np.eye(3), -np.eye(3)])
    rise = posterior.potential(mode + steps) - posterior.potential(mode[None])
    assert (rise > 0).all()
    assert rise.reshape(2, 3).mean(0) == pytest.approx(0.5e-6 * hessian.diagonal(), rel=1e-3)


@pytest.mark.parametrize("noise_std", [0.8, None])
@pytest.mark.parametrize("p", [2, 3])
def test_true_divergences_are_those_of_many_draws(p: int, noise_std: float | None) -> None:
    before = regression(120, p, noise_std)
    after, moved_by = before.without(np.arange(2)), bend(before)
    draws = sample(before, 10, 4_000, 0.0, np.random.default_rng(0)).reshape(-1, p)
    kl, chi_square = divergences(before, after, moved_by)
    sampled_kl, sampled_chi_square = estimate(before, after, moved_by, draws)
    assert kl == pytest.approx(sampled_kl, rel=0.06)
    assert chi_square == pytest.approx(sampled_chi_square, rel=0.08)
    assert 1e-3 < kl < 1


@pytest.mark.parametrize("noise_std", [0.8, None])
def test_divergence_of_a_picked_draw_is_that_of_many_pickings(noise_std: float | None) -> None:
    """For two draws, q_2 is known: KL is the mean of log(p_R/q_2) = -log E 2/(w + w'), w' of the draw not picked."""
    before = regression(120, 2, noise_std)
    after, moved_by = before.without(np.arange(2)), bend(before)
    rng = np.random.default_rng(0)
    others = sample(before, 4, 2_000, 0.0, rng).reshape(-1, 2)
    log_w = before.potential(others) - after.potential(moved_by(others)) + moved_by.log_det
    shift = math.log(np.exp(log_w - log_w.max()).mean()) + log_w.max()
    picked = sample(after, 1, 2_000, 0.0, rng).reshape(-1, 2)
    origin = (picked - moved_by.offset) @ np.linalg.inv(moved_by.slope).T
    weights = np.exp(before.potential(origin) - after.potential(picked) + moved_by.log_det - shift)
    ratios = [2 * np.mean(1 / (w + np.exp(log_w - shift))) for w in weights]
    bound = picked_divergence(before, after, moved_by, 2)
    _, chi_square = divergences(before, after, moved_by)
    assert -np.mean(np.log(ratios)) < bound * 1.05 + 1e-3
    assert bound < math.log1p(chi_square / 2)
    assert bound == pytest.approx(float(np.log1p((weights - 1) / 2).mean()), rel=0.15)


def test_far_tails_dominate_chi_square_but_not_the_divergence() -> None:
    before = regression(60, 2, 1.0)
    narrow = AffineMap(0.6 * np.eye(2), 0.4 * before.mode()[0])
    assert divergences(before, before, narrow)[1] == math.inf
    assert picked_divergence(before, before, narrow, 1_000) < 0.1


def test_a_right_map_of_a_gaussian_has_no_divergence() -> None:
    before = regression(60, 2, 1.0)
    after = before.without(np.arange(20))
    (mode, hessian), (target, precision) = before.mode(), after.mode()
    slope = np.linalg.cholesky(np.linalg.inv(precision)) @ np.linalg.inv(np.linalg.cholesky(np.linalg.inv(hessian)))
    kl, chi_square = divergences(before, after, AffineMap(slope, target - slope @ mode))
    assert abs(kl) < 1e-13
    assert abs(chi_square) < 1e-12


def test_a_set_too_narrow_has_no_chi_square() -> None:
    before = regression(60, 2, 1.0)
    assert divergences(before, before, AffineMap(0.5 * np.eye(2), np.zeros(2)))[1] == math.inf


@pytest.mark.parametrize("noise_std", [0.8, None])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_draws_have_the_moments_of_the_posterior_and_the_correlation(
    noise_std: float | None, correlation: float
) -> None:
    posterior = regression(200, 2, noise_std)
    draws = sample(posterior, 4, 10_000, correlation, np.random.default_rng(1))
    mode, hessian = posterior.mode()
    std = np.sqrt(np.linalg.inv(hessian).diagonal())
    assert np.abs((draws.mean((0, 1)) - mode) / std).max() < 0.15  # a logistic mean is off its mode
    assert draws.std((0, 1)) == pytest.approx(std, rel=0.05)
    centred = draws[:, :, 0] - draws[:, :, 0].mean()
    lag = (centred[:, 1:] * centred[:, :-1]).mean() / centred.var()
    assert lag == pytest.approx(correlation, abs=0.03) if noise_std else lag > correlation - 0.03


def test_a_map_is_recovered_from_draws_or_refused() -> None:
    draws = np.random.default_rng(0).normal(size=(50, 2)) * [1e3, 1e-3]
    moved_by = AffineMap(np.array([[1.1, 20.0], [0.0, 0.9]]), np.array([1.0, -2.0]))
    fitted = fit_map(draws, moved_by(draws))
    assert fitted.slope == pytest.approx(moved_by.slope, abs=1e-9)
    assert fitted.log_det == pytest.approx(math.log(0.99))
    with pytest.raises(ArithmeticError, match="not moved by an affine map"):
        fit_map(draws, draws**2)
