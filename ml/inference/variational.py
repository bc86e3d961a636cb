"""Variational inference to the optimum: first the family's own sweeps, then Newton steps.

The length of a step is in units of the widths, so that it does not depend on the units of the data.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.models.family import Family
from ml.models.newton import newton_step
from ml.posteriors.mean_field import MeanFieldGaussian

_TOLERANCE = 1e-10
_MAX_SWEEPS = 10_000
_MAX_CONVEX_SWEEPS = 500  # of Newton steps, each as costly as a thousand of a mixture's sweeps
_MAX_NEWTON_STEPS = 50
_HANDOVER = 0.3  # Newton takes over once a sweep moves λ by less than this
_LAST_HANDOVER = 1e-7
_STAGNATION = 1e-4  # below it, a Newton step that no longer shrinks is rounding

OnStep = Callable[[int, float], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained posterior. `hessian` is ∇²F there over the training data; keeping it saves `forget` a pass."""

    posterior: MeanFieldGaussian
    hessian: Tensor
    iterations: int
    gradient_norm: float


def train(
    family: Family,
    data: Tensor,
    start: MeanFieldGaussian,
    tolerance: float = _TOLERANCE,
    on_step: OnStep | None = None,
) -> Trained:
    """Minimise F from `start` until a Newton step moves λ by at most `tolerance` widths or by rounding alone.

    `on_step(iteration, step_length)` is called after every iteration. Sweeps continue while the Hessian is not positive
    definite. If it never becomes so, the start leads to a saddle, and NumericalFailure is raised.
    """
    if not 0 <= tolerance < math.inf:
        raise InvalidInput(f"tolerance is {tolerance}: pass a finite number, 0 for rounding accuracy")
    return _train(family, data, start, tolerance, _Progress(start, on_step))


@dataclass(frozen=True, eq=False)
class Descended:
    """Where training ended, converged or not."""

    posterior: MeanFieldGaussian
    iterations: int


def descend(family: Family, data: Tensor, start: MeanFieldGaussian) -> Descended:
    """Train as far as rounding allows. Every step lowers F, so where training fails, its last point counts.

    Rows that are collinear or all equal, at a scale far from the prior's, have an energy whose Hessian is singular in
    float64. A posterior that such rows reach is no good, but it has read no others.
    """
    progress = _Progress(start)
    with contextlib.suppress(NumericalFailure):
        _train(family, data, start, _TOLERANCE, progress)
    return Descended(progress.reached, progress.iterations)


def _train(family: Family, data: Tensor, start: MeanFieldGaussian, tolerance: float, progress: _Progress) -> Trained:
    family.check_data(data)
    family.check_posterior(start)
    posterior, handover = start, _HANDOVER
    while True:
        posterior = _sweep(family, data, posterior, handover, progress)
        try:
            return _minimise_by_newton(family, data, posterior, tolerance, progress)
        except NumericalFailure:
            if handover <= _LAST_HANDOVER:
                raise
        handover /= 100


class _Progress:
    """Counter of iterations that reports each one, and the posterior that the last one reached."""

    def __init__(self, start: MeanFieldGaussian, on_step: OnStep | None = None) -> None:
        self.iterations, self.reached = 0, start
        self._on_step = on_step

    def step(self, reached: MeanFieldGaussian, length: float) -> None:
        self.iterations, self.reached = self.iterations + 1, reached
        if self._on_step is not None:
            self._on_step(self.iterations, length)


def _sweep(
    family: Family, data: Tensor, posterior: MeanFieldGaussian, handover: float, progress: _Progress
) -> MeanFieldGaussian:
    """Sweep until a sweep moves λ by at most `handover` widths."""
    most = _MAX_CONVEX_SWEEPS if family.convex else _MAX_SWEEPS
    for _ in range(most):
        swept = family.sweep(posterior, data)
        length = _distance(posterior, swept)
        progress.step(swept, length)
        posterior = swept
        if length <= handover:
            return posterior
    raise NumericalFailure(
        f"training did not converge in {most} sweeps: start from another seed or use fewer components"
    )


def _minimise_by_newton(
    family: Family, data: Tensor, posterior: MeanFieldGaussian, tolerance: float, progress: _Progress
) -> Trained:
    at, previous = family.expand(posterior, data), math.inf
    for _ in range(_MAX_NEWTON_STEPS):
        after = newton_step(family, at, data)
        length = _distance(at.posterior, after.posterior)
        progress.step(after.posterior, length)
        at = after
        if length <= tolerance or (length <= _STAGNATION and length > previous / 2):
            return Trained(at.posterior, at.hessian, progress.iterations, float(at.gradient.norm()))
        previous = length
    raise NumericalFailure(f"Newton's method did not converge in {_MAX_NEWTON_STEPS} steps: start from another seed")


def _distance(start: MeanFieldGaussian, end: MeanFieldGaussian) -> float:
    """Return the length of the step in units of the widths at its end."""
    return float(((end.flat() - start.flat()) / end.std.flatten().repeat(2)).norm())
