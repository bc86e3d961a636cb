"""Minimiser of a reference energy: Newton's method in 80-bit arithmetic, and its check with 50 digits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from benchmarks.certificates.audit.energies import Energy, Mixture
from benchmarks.certificates.audit.extended import (
    DIGITS,
    Array,
    extended,
    mpmath,
    natural_length,
    solve,
    with_fifty_digits,
)

_SMALL_STEP = 0.1  # natural length below which a Newton step needs no line search
_MAX_STEPS = 200
_MAX_HALVINGS = 40
_CONVERGED = 1e-9
_SAFETY = 8.0  # the accuracy of a minimiser, in lengths of the last steps, which are rounding
_SWEEPS, _MAX_SWEEPS = 50, 1_000  # a saddle between two like components holds them for ever

AnyEnergy = TypeVar("AnyEnergy", bound=Energy)


@dataclass(frozen=True, eq=False)
class Minimum:
    """Minimiser of an energy. `accuracy` bounds its distance from the true one in the metric of `natural_length`."""

    at: Array
    accuracy: float


class NoMinimum(ArithmeticError):
    """The descent did not converge."""


def minimise(energy: Energy, start: Array) -> Minimum:
    """Return the minimiser that damped Newton steps reach from `start`. A mixture sweeps first where it is not convex.

    Steps end where they no longer shrink: their length is then the rounding of the gradient, seen through the Hessian.
    """
    at, previous, sweeps = extended(start), math.inf, 0
    for _ in range(_MAX_STEPS):
        try:
            gradient, hessian = energy.derivatives(at)
            step = -solve(hessian, gradient)
        except ArithmeticError as error:
            if not isinstance(energy, Mixture) or sweeps == _MAX_SWEEPS:
                raise NoMinimum(str(error)) from error
            at, previous, sweeps = _sweep(energy, at), math.inf, sweeps + _SWEEPS
            continue
        length = natural_length(step, at)
        if length <= _CONVERGED and length >= previous / 2:
            rounding = float(np.finfo(np.longdouble).eps) * natural_length(at, at)
            return Minimum(at, _SAFETY * (max(length, previous) + rounding))
        at, previous = _damped(energy, at, step, length), length
    raise NoMinimum(f"no convergence in {_MAX_STEPS} Newton steps")


def correction(energy: Energy, minimum: Minimum) -> float:
    """Return the natural length of the Newton step at the minimum, with the gradient in 50 digits."""
    with mpmath().workdps(DIGITS):
        gradient = _in_decimals(energy).gradient(with_fifty_digits(minimum.at))
    step = solve(energy.hessian(minimum.at), extended([float(entry) for entry in gradient]))
    return natural_length(step, minimum.at)


def _in_decimals(energy: AnyEnergy) -> AnyEnergy:
    """Return the energy with its arrays as mpmath numbers."""
    arrays = {field.name: getattr(energy, field.name) for field in fields(energy)}  # type: ignore[arg-type]
    converted = {name: with_fifty_digits(value) for name, value in arrays.items() if isinstance(value, np.ndarray)}
    return replace(energy, **converted)  # type: ignore[type-var]


def _sweep(energy: Mixture, at: Array) -> Array:
    for _ in range(_SWEEPS):
        at = energy.sweep(at)
    return at


def _damped(energy: Energy, at: Array, step: Array, length: float) -> Array:
    """Return at + t·step, t halved until F does not rise. A step within the range of the quadratic is taken whole."""
    if length <= _SMALL_STEP:
        return at + step
    std, std_step = np.split(at, 2)[1], np.split(step, 2)[1]
    share = min(1.0, 0.9 / max(float(np.max(-std_step / std)), 1e-300))
    value = energy.value(at)
    for _ in range(_MAX_HALVINGS):
        after = at + share * step
        if energy.value(after) <= value + 1e-12 * (1 + abs(value)):
            return after
        share /= 2
    raise NoMinimum("no step along the Newton direction lowers the energy")
