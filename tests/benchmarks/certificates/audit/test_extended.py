from __future__ import annotations

import mpmath
import numpy as np
import pytest

from benchmarks.certificates.audit.extended import (
    cholesky,
    exponential,
    extended,
    has_mpmath,
    mean_field_kl,
    natural_length,
    solve,
    square_root,
    with_fifty_digits,
)


def test_numbers_have_more_digits_than_float64() -> None:
    assert float(extended(1) + extended(2.0**-60) - 1) == 2.0**-60
    assert has_mpmath()


def test_conversion_to_fifty_digits_loses_nothing() -> None:
    value = extended(1) / 3
    (converted,) = with_fifty_digits(np.asarray([value]))
    with mpmath.workdps(50):
        assert abs(converted - mpmath.mpf(1) / 3) < mpmath.mpf(2) ** -64
        assert abs(converted - mpmath.mpf(1) / 3) > mpmath.mpf(2) ** -70


@pytest.mark.parametrize(("function", "name"), [(exponential, "exp"), (square_root, "sqrt")])
def test_functions_serve_both_arithmetics(function: object, name: str) -> None:
    values = extended([0.25, 2.5])
    with mpmath.workdps(50):
        decimals = function(with_fifty_digits(values))  # type: ignore[operator]
        for value, decimal in zip(values, decimals, strict=True):
            assert abs(decimal - getattr(mpmath, name)(mpmath.mpf(float(value)))) < 1e-45
    assert np.max(np.abs(function(values) - extended([float(a) for a in decimals]))) < 1e-15  # type: ignore[operator]


def test_systems_are_solved_to_80_bits_whatever_the_units() -> None:
    rng = np.random.default_rng(0)
    root = extended(rng.normal(size=(9, 6)))
    scale = extended(10.0) ** np.linspace(-4, 4, 6)
    matrix = (root.T @ root) * scale * scale[:, None]
    solution = extended(rng.normal(size=6)) / scale
    assert np.max(np.abs(scale * (solve(matrix, matrix @ solution) - solution))) < 1e-17
    factor = cholesky(root.T @ root)
    assert np.max(np.abs(factor @ factor.T - root.T @ root)) < 1e-17


def test_indefinite_matrices_have_no_factor() -> None:
    with pytest.raises(ArithmeticError, match="not positive definite: pivot 1"):
        cholesky(extended([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-6, 1e-10])
def test_divergence_agrees_with_fifty_digits(gap: float) -> None:
    first, second = extended([0.3, -1.0, 0.5, 2.0]), extended([0.3 + gap, -1.0, 0.5, 2.0 * (1 + gap)])
    with mpmath.workdps(50):
        a, b = with_fifty_digits(first), with_fifty_digits(second)
        ratios = [(a[2 + j] / b[2 + j]) ** 2 for j in range(2)]
        truth = sum((r - 1 - mpmath.log(r) + ((a[j] - b[j]) / b[2 + j]) ** 2) / 2 for j, r in enumerate(ratios))
    assert mean_field_kl(first, second) == pytest.approx(float(truth), rel=1e-9)


def test_half_the_square_of_a_small_natural_length_is_the_divergence() -> None:
    at, step = extended([0.3, -1.0, 0.5, 2.0]), 1e-6 * extended([1.0, 2.0, -1.0, 0.5])
    assert 0.5 * natural_length(step, at) ** 2 == pytest.approx(mean_field_kl(at, at + step), rel=1e-5)
