"""True divergence of moved samples from the retained posterior, computed without samples.

For an affine map T(θ) with slope A and the potentials U on S and R,

    KL(T#p_S ‖ p_R) = E_S[U_R(Tθ) - U_S(θ)] - log|det A| - log Z_S + log Z_R

in closed form if both posteriors are Gaussian, else by Gauss-Hermite quadrature around the two Laplace fits. For two or
three parameters, quadrature has many more digits than any sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import vmap

from ml.inference.laplace import Laplace
from ml.models.potential import Potential

# Nodes per parameter. On logistic regressions of 50 rows or more, 28 nodes agree with it to 2e-4 of the divergence.
_NODES = 16
_MAX_EXPONENT = 700.0  # of exp in float64
_AT_ONCE = 200  # values of θ per chunk, so that their rows stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Affine:
    """T(θ) = to + A(θ - origin)."""

    slope: Tensor  # A
    origin: Tensor
    to: Tensor

    @property
    def log_det(self) -> float:
        return float(torch.linalg.slogdet(self.slope)[1])

    def forwards(self, theta: Tensor) -> Tensor:
        return self.to + (theta - self.origin) @ self.slope.T

    def backwards(self, theta: Tensor) -> Tensor:
        offsets: Tensor = torch.linalg.solve(self.slope, (theta - self.to).T).T
        return self.origin + offsets

    def followed_by(self, other: Affine) -> Affine:
        return Affine(other.slope @ self.slope, self.origin, other.forwards(self.to))


@dataclass(frozen=True, eq=False)
class KnownPosterior:
    """Posterior given by its potential and Laplace fit."""

    potential: Potential
    laplace: Laplace

    def from_white(self, white: Tensor) -> Tensor:
        """Return rows m + H^(-½)z, which are draws of the Laplace fit if z is standard normal."""
        factor = torch.linalg.cholesky(self.laplace.hessian)
        offsets: Tensor = torch.linalg.solve_triangular(factor.T, white.T, upper=True).T
        return self.laplace.mode + offsets

    def values(self, theta: Tensor) -> Tensor:
        """Return U at each row."""
        return vmap(self.potential.value, chunk_size=_AT_ONCE)(theta)


@dataclass(frozen=True, eq=False)
class _Rule:
    theta: Tensor  # nodes
    value: Tensor  # U there
    mass: Tensor  # of the posterior, 1 in all
    log_evidence: float  # log Z = log ∫ e^(-U)


def gaussian_divergence(before: KnownPosterior, after: KnownPosterior, moved_by: Affine) -> float:
    """Return the divergence for quadratic potentials: an affine map of a Gaussian is Gaussian."""
    covariance = moved_by.slope @ torch.linalg.inv(before.laplace.hessian) @ moved_by.slope.T
    moved = MultivariateNormal(moved_by.forwards(before.laplace.mode), (covariance + covariance.T) / 2)
    retained = MultivariateNormal(after.laplace.mode, precision_matrix=after.laplace.hessian)
    return float(kl_divergence(moved, retained))


def divergence_by_quadrature(before: KnownPosterior, after: KnownPosterior, moved_by: Affine) -> float:
    s, r = _rule(before), _rule(after)
    rise = after.values(moved_by.forwards(s.theta)) - s.value
    return float(s.mass.dot(rise)) - moved_by.log_det - s.log_evidence + r.log_evidence


def picked_divergence(before: KnownPosterior, after: KnownPosterior, moved_by: Affine, draws: float) -> float:
    """Bound KL(p_R ‖ q_N), q_N the law of one of N moved draws that is picked by its weight w = p_R/T#p_S.

    q_N ≥ p_R N/(N-1+w) gives E_R log(1 + (w-1)/N), which is at most log(1 + χ²/N), and finite where χ² is not.
    """
    r, log_evidence = _rule(after), _rule(before).log_evidence
    log_moved = -before.values(moved_by.backwards(r.theta)) - log_evidence - moved_by.log_det
    log_weight = -r.value - r.log_evidence - log_moved
    small = torch.log1p(torch.expm1(log_weight.clamp(max=_MAX_EXPONENT)) / draws)
    terms = torch.where(log_weight < _MAX_EXPONENT, small, log_weight - math.log(draws))
    return float(r.mass.dot(terms))


def _rule(posterior: KnownPosterior) -> _Rule:
    line, weight = _hermite(_NODES)
    d = len(posterior.laplace.mode)
    grid = torch.cartesian_prod(*[line] * d)
    theta = posterior.from_white(grid)
    value = posterior.values(theta)
    log_mass = torch.cartesian_prod(*[weight.log()] * d).sum(1) + 0.5 * grid.square().sum(1) - value
    log_jacobian = 0.5 * d * math.log(2 * math.pi) - 0.5 * float(torch.logdet(posterior.laplace.hessian))
    return _Rule(theta, value, torch.softmax(log_mass, 0), float(torch.logsumexp(log_mass, 0)) + log_jacobian)


def _hermite(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for the standard normal, from the Jacobi matrix with off-diagonal √j (Golub, Welsch)."""
    off_diagonal = torch.arange(1, count, dtype=torch.float64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return nodes, vectors[0].square()
