"""What the regressions share: rows that end in a target, and independent weights w_j ~ N(0, prior_std²).

With q(w) = N(m, diag s²) and σ = prior_std the prior's part of the energy is

    f(λ) = KL(q_λ ‖ prior) = Σ_j (m_j² + s_j²)/(2σ²) - log s_j + log σ - ½

No column of ones is added: a model with an intercept has one among its features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.family import Rounding
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian

# Products of six factors between the inverse of this and this, and their sums, are finite in float64.
_LARGEST = 1e40
# Room for Cholesky to prove what eigvalsh found; a third derivative needs no more digits.
_EIGENVALUE_MARGIN = 1 + 1e-6


def check_count(name: str, value: int, least: int = 1) -> None:
    if type(value) is not int or value < least:
        raise InvalidInput(f"{name} is {value!r}: pass a whole number of at least {least}")


def check_scale(name: str, value: float) -> None:
    if type(value) not in (int, float) or not 1 / _LARGEST <= value <= _LARGEST:
        raise InvalidInput(f"{name} is {value!r}: pass a number between 1e-40 and 1e40")


def check_rows(data: Tensor, dimensions: int) -> None:
    if data.ndim != 2 or data.shape[1] != dimensions + 1:
        raise InvalidInput(
            f"data has shape {tuple(data.shape)}: pass rows of {dimensions + 1} columns, {dimensions} features and "
            "the target last"
        )
    if data.dtype != torch.float64:
        raise InvalidInput(f"data is {data.dtype}: convert it to torch.float64")
    if len(data) == 0:
        raise InvalidInput("data has no rows: pass at least one")
    if not float(data.abs().max()) <= _LARGEST:
        raise InvalidInput("data holds NaN, infinity or values beyond 1e40: clean, scale or drop those rows")


def check_labels(data: Tensor, classes: int) -> None:
    labels = data[:, -1]
    wrong = (labels != labels.round()) | (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInput(
            f"row {row} has the label {float(labels[row])}: pass whole numbers from 0 to {classes - 1} as last column"
        )


def check_weights(posterior: MeanFieldGaussian, shape: tuple[int, ...]) -> None:
    if posterior.mean.shape != shape:
        raise InvalidInput(f"posterior has shape {tuple(posterior.mean.shape)}: this regression needs {shape}")
    if float(posterior.flat().abs().max()) > _LARGEST or float(posterior.std.min()) < 1 / _LARGEST:
        raise InvalidInput("posterior holds values beyond 1e40 or std below 1e-40: scale the data and train again")


@dataclass(frozen=True)
class WeightPrior:
    """N(0, std²) on every weight, and its part f of the energy."""

    std: float

    def log_density(self, weights: Tensor) -> Tensor:
        each = math.log(self.std * math.sqrt(2 * math.pi))
        return -0.5 * (weights / self.std).square().sum() - weights.numel() * each

    def expand(self, posterior: MeanFieldGaussian) -> tuple[float, Tensor, Tensor]:
        """f, ∇f and the diagonal of ∇²f, which has nothing beside it."""
        flat, inverse, precision = posterior.flat(), posterior.std.flatten().reciprocal(), self.std**-2
        energy = float(0.5 * precision * flat.dot(flat) + inverse.log().sum())
        none = torch.zeros_like(inverse)
        gradient = precision * flat - torch.cat([none, inverse])
        curvature = precision + torch.cat([none, inverse.square()])
        return energy + len(inverse) * (math.log(self.std) - 0.5), gradient, curvature

    def rounding(self, posterior: MeanFieldGaussian) -> Rounding:
        """The error of ∇f and ∇²f as computed above, and of adding them to the rows' part."""
        precision, inverse = self.std**-2, 1 / float(posterior.std.min())
        gradient = precision * float(posterior.flat().norm()) + inverse * math.sqrt(posterior.std.numel())
        return Rounding(gamma(16) * gradient, gamma(16) * (precision + inverse**2))

    def third_derivative(self, posterior: MeanFieldGaussian, radius: float) -> Tensor:
        """The largest |∂³f/∂s_j³| on the ball for each weight: 2/(s_j - R)³; infinite if an s_j can reach 0 there."""
        narrowest = (posterior.std.flatten() - radius) * (1 - gamma(8))
        return torch.where(narrowest > 0, 2 / narrowest**3, math.inf) * (1 + gamma(16))


def third_derivative(of_rows: Tensor, slack: float, of_prior: Tensor) -> float:
    """A bound of ‖∇³F‖ on a ball, from A (computed with a spectral error up to `slack`) and c such that on that ball

        |∇³(F-f)[v,v,v]| ≤ vᵀAv  for every unit v     |∂³f/∂s_j³| ≤ c_j

    As |v_j|³ ≤ v_j², ‖∇³F‖ = max_v |∇³F[v,v,v]| ≤ λ_max(A + diag(0, c)): the norm of a symmetric trilinear form is
    reached with its three arguments equal (Banach).
    """
    if not math.isfinite(slack) or not bool(torch.isfinite(of_prior).all()):
        return math.inf
    matrix = of_rows.clone()
    matrix.diagonal()[len(of_prior) :] += of_prior
    return _largest_eigenvalue(matrix) + slack * (1 + gamma(8))


def _largest_eigenvalue(matrix: Tensor) -> float:
    """An upper bound: eigvalsh guesses it, Cholesky proves it (Higham, theorem 10.3); failing that, ‖·‖_F."""
    size = len(matrix)
    guess = float(torch.linalg.eigvalsh(matrix)[-1]) * _EIGENVALUE_MARGIN
    _, failed_at = torch.linalg.cholesky_ex(guess * torch.eye(size, dtype=matrix.dtype, device=matrix.device) - matrix)
    if int(failed_at) != 0:
        return float(matrix.norm()) * (1 + gamma(size**2 + 8))
    return guess * (1 + 8 * gamma(size + 4) * size)
