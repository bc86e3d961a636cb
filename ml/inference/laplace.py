"""Laplace approximation: the mode of a posterior and the curvature there, p(θ | data) ≈ N(mode, hessian⁻¹)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.models.potential import Potential

_MAX_STEPS = 100
_MAX_HALVINGS = 30
# gᵀH⁻¹g is twice the remaining decrease in nats; its root is the distance to the mode in posterior standard deviations.
_CONVERGED = 1e-20
# Below it, a decrement that no longer shrinks is rounding.
_STAGNATION = 1e-12
# Two evaluations of one potential agree to this relative accuracy; a smaller rise is rounding.
_VALUE_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Laplace:
    mode: Tensor
    hessian: Tensor


def fit_laplace(potential: Potential, start: Tensor) -> Laplace:
    """Find the mode by Newton's method from `start`: θ - t H⁻¹∇U, with t = 1 halved until U does not rise."""
    theta, previous = start, torch.inf
    for _ in range(_MAX_STEPS):
        gradient, hessian = potential.gradient(theta), potential.hessian(theta)
        step = _newton_direction(hessian, gradient)
        decrement = float(gradient.dot(step))
        if decrement <= _CONVERGED or (decrement <= _STAGNATION and decrement > previous / 4):
            _check_mode(hessian)
            return Laplace(theta, hessian)
        theta, previous = _damped_step(potential, theta, step), decrement
    raise NumericalFailure(f"no mode reached in {_MAX_STEPS} Newton steps: start from samples of a converged chain")


def _newton_direction(hessian: Tensor, gradient: Tensor) -> Tensor:
    """Return H⁻¹g, or |H|⁻¹g if H is not positive definite, which descends along negative curvature too."""
    factor, failed_at = torch.linalg.cholesky_ex(hessian)
    if int(failed_at) == 0:
        return torch.cholesky_solve(gradient.unsqueeze(1), factor).squeeze(1)
    if not bool(torch.isfinite(hessian).all()):
        raise NumericalFailure("the Hessian holds NaN or infinity: scale the data to the scale of the prior")
    curvature, directions = torch.linalg.eigh(hessian)
    sizes = curvature.abs().clamp(min=torch.finfo(hessian.dtype).eps * float(curvature.abs().max()))
    step: Tensor = directions @ ((directions.T @ gradient) / sizes)
    return step


def _damped_step(potential: Potential, theta: Tensor, step: Tensor) -> Tensor:
    before, length = float(potential.value(theta)), 1.0
    for _ in range(_MAX_HALVINGS):
        after = theta - length * step
        if float(potential.value(after)) <= before + _VALUE_ROUNDING * (1 + abs(before)):
            return after
        length /= 2
    raise NumericalFailure("no step along the Newton direction lowers the potential: run the chain again instead")


def _check_mode(hessian: Tensor) -> None:
    if int(torch.linalg.cholesky_ex(hessian)[1]) != 0:
        raise NumericalFailure(
            "Newton's method ended at a saddle of the potential, not at a mode: start from samples of one basin, or "
            "retrain on the retained data"
        )
