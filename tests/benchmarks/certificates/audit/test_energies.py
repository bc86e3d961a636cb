from __future__ import annotations

import mpmath
import numpy as np
import pytest

from benchmarks.certificates.audit.energies import Energy, Linear, Logistic, Mixture, Softmax
from benchmarks.certificates.audit.extended import Array, extended

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(7, 2))
NOISE = RNG.normal(size=(3, 6))
NOISE = np.concatenate([NOISE, -NOISE])
LINEAR = Linear(extended(ROWS), extended(RNG.normal(size=7)), noise_std=0.7, prior_std=1.5)
LOGISTIC = Logistic(extended(3 * ROWS), extended([1, -1, 1, 1, -1, 1, -1]), prior_std=1.5)
SOFTMAX = Softmax(extended(ROWS), extended(np.eye(3)[[0, 1, 2, 0, 1, 2, 0]]), extended(NOISE), prior_std=1.5)
MIXTURE = Mixture(extended(3 * ROWS), components=2, prior_std=1.5)
CASES = [(LINEAR, 2), (LOGISTIC, 2), (SOFTMAX, 6), (MIXTURE, 4)]


def a_point(size: int) -> Array:
    rng = np.random.default_rng(size)
    return extended(np.concatenate([0.5 * rng.normal(size=size), rng.uniform(0.3, 2.5, size)]))


@pytest.mark.parametrize(("energy", "size"), CASES)
def test_gradients_are_slopes_of_the_energy(energy: Energy, size: int) -> None:
    at, slopes = a_point(size), []
    for direction in np.eye(2 * size):
        slopes.append((energy.value(at + 1e-5 * direction) - energy.value(at - 1e-5 * direction)) / 2e-5)
    assert np.max(np.abs(energy.gradient(at) - slopes)) < 1e-7


@pytest.mark.parametrize(("energy", "size"), CASES)
def test_hessians_are_slopes_of_the_gradient(energy: Energy, size: int) -> None:
    at, step = a_point(size), 1e-6
    columns = [(energy.gradient(at + step * e) - energy.gradient(at - step * e)) / (2 * step) for e in np.eye(2 * size)]
    gradient, hessian = energy.derivatives(at)
    assert np.max(np.abs(hessian - np.stack(columns))) < 1e-8
    assert np.array_equal(gradient, energy.gradient(at))
    assert np.array_equal(hessian, energy.hessian(at))


def test_linear_energy_is_least_in_closed_form() -> None:
    x, y = LINEAR.features, LINEAR.targets
    precision = x.T @ x / LINEAR.noise_std**2 + np.eye(2) / LINEAR.prior_std**2
    mean = np.linalg.solve(precision.astype(float), (x.T @ y / LINEAR.noise_std**2).astype(float))
    optimum = extended(np.concatenate([mean, 1 / np.sqrt(precision.diagonal().astype(float))]))
    assert np.max(np.abs(LINEAR.gradient(optimum))) < 1e-13


@pytest.mark.parametrize("width", [0.01, 0.9, 3.0, 40.0])
@pytest.mark.parametrize("centre", [0.0, -2.0, 30.0])
def test_expected_log_loss_has_80_bits(centre: float, width: float) -> None:
    """One row with x = 1, so that the mean and width of the logit are λ itself."""
    energy = Logistic(extended([[1.0]]), extended([1.0]), prior_std=1e30)

    with mpmath.workdps(30):

        def integral(derivative: object) -> mpmath.mpf:
            ends = sorted({-12.0, -centre / width, 12.0} | {float(z) for z in range(-12, 13, 2)})
            return mpmath.quad(lambda z: mpmath.npdf(z) * derivative(centre + width * z), ends)  # type: ignore[operator]

        first = integral(lambda t: -1 / (1 + mpmath.exp(t)))
        second = integral(lambda t: 1 / (2 + mpmath.exp(t) + mpmath.exp(-t)))
    mean_slope, std_slope = energy.gradient(extended([centre, width]))
    assert float(mean_slope) == pytest.approx(float(first), rel=1e-14, abs=1e-17)
    assert float(std_slope + 1 / extended(width)) == pytest.approx(width * float(second), rel=1e-14, abs=1e-15 / width)


def test_a_logit_too_wide_for_the_rule_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="standard deviation 1e\\+04"):
        LOGISTIC.gradient(extended([0.0, 0.0, 1e4 / float(LOGISTIC.features[:, 0].max()), 1e-9]))


def test_responsibilities_are_shares_and_a_sweep_lowers_the_energy() -> None:
    at = a_point(4)
    assert np.allclose(MIXTURE.responsibilities(at).sum(1).astype(float), 1)
    assert MIXTURE.value(MIXTURE.sweep(at)) < MIXTURE.value(at)
