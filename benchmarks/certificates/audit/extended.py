"""Arithmetic of the reference: 80-bit numbers (numpy.longdouble), checked with 50 digits (mpmath).

Arrays hold `numpy.longdouble`, or mpmath numbers as objects; the same formulas serve both.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

DIGITS = 50
_SERIES_BELOW = 1e-5


def extended(values: ArrayLike) -> Array:
    """Return the values as 80-bit numbers."""
    return np.asarray(values, dtype=np.longdouble)


def has_mpmath() -> bool:
    """Return whether mpmath, a development dependency, is installed."""
    return importlib.util.find_spec("mpmath") is not None


@functools.cache
def mpmath() -> Any:
    """Return the module, which has no types."""
    return importlib.import_module("mpmath")


def with_fifty_digits(values: Array) -> Array:
    """Return 80-bit numbers as mpmath numbers. Each is the sum of two float64, so nothing is lost."""

    def convert(value: np.longdouble) -> Any:
        high = float(value)
        return mpmath().mpf(high) + mpmath().mpf(float(value - np.longdouble(high)))

    with mpmath().workdps(DIGITS):
        converted: Array = np.frompyfunc(convert, 1, 1)(extended(values))
    return converted


def exponential(values: Array) -> Array:
    return _apply("exp", values)


def square_root(values: Array) -> Array:
    return _apply("sqrt", values)


def cholesky(matrix: Array) -> Array:
    """Return lower-triangular L with LLᵀ = matrix. ArithmeticError if the matrix is not positive definite."""
    factor = np.zeros_like(matrix)
    for j in range(len(matrix)):
        column = matrix[j:, j] - factor[j:, :j] @ factor[j, :j]
        if not column[0] > 0:
            raise ArithmeticError(f"the matrix is not positive definite: pivot {j} is {float(column[0]):.3g}")
        factor[j:, j] = column / np.sqrt(column[0])
    return factor


def solve(matrix: Array, right: Array) -> Array:
    """Return matrix⁻¹·right for a positive definite matrix, scaled to a unit diagonal first."""
    if not (matrix.diagonal() > 0).all():
        raise ArithmeticError("the matrix is not positive definite: a diagonal entry is not positive")
    scale = 1 / np.sqrt(matrix.diagonal())
    factor = cholesky(matrix * scale * scale[:, None])
    forward = np.zeros_like(right)
    for j in range(len(right)):
        forward[j] = (scale[j] * right[j] - factor[j, :j] @ forward[:j]) / factor[j, j]
    solution = np.zeros_like(right)
    for j in reversed(range(len(right))):
        solution[j] = (forward[j] - factor[j + 1 :, j] @ solution[j + 1 :]) / factor[j, j]
    return scale * solution


def mean_field_kl(first: Array, second: Array) -> float:
    """Return KL(q_first ‖ q_second) in nats, for λ = (means, standard deviations).

    For each coordinate ½ [x - log(1+x) + (Δmean/std')²] with 1 + x = (std/std')².
    """
    (mean, std), (other_mean, other_std) = np.split(first, 2), np.split(second, 2)
    x = (std - other_std) * (std + other_std) / other_std**2
    series = x**2 * (1 / extended(2) - x * (1 / extended(3) - x * (1 / extended(4) - x * (1 / extended(5) - x / 6))))
    excess = np.where(np.abs(x) < _SERIES_BELOW, series, x - np.log1p(x))
    return float(0.5 * np.sum(excess + ((mean - other_mean) / other_std) ** 2))


def natural_length(step: Array, at: Array) -> float:
    """Return the length of a step of λ in the metric in which KL is about half its square: widths, and √2 for stds."""
    std = np.split(at, 2)[1]
    mean_step, std_step = np.split(step, 2)
    return float(np.sqrt(np.sum((mean_step / std) ** 2) + 2 * np.sum((std_step / std) ** 2)))


@functools.cache
def _elementwise(name: str) -> Callable[[Array], Array]:
    function: Callable[[Array], Array] = np.frompyfunc(getattr(mpmath(), name), 1, 1)
    return function


def _apply(name: str, values: Array) -> Array:
    if values.dtype == object:
        return _elementwise(name)(values)
    result: Array = getattr(np, name)(values)
    return result
