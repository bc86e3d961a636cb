"""Energies of the four variational families, derived for the audit from the models' definitions.

λ = (means, standard deviations) of q(θ) = Π N(mean_j, std_j²), and F(λ) = -E_q log p(rows | θ) + KL(q ‖ N(0, prior²)).

    linear     y ~ N(x·θ, noise²)                         E_q in closed form
    logistic   p(y) = 1/(1 + e^(-s x·θ)), s = ±1          E_q by the trapezoidal rule, x·θ ~ N(x·mean, Σ(x_j std_j)²)
    softmax    p(y) ∝ e^(θ_y·x)                           E_q replaced by the average over the draws of noise given
    mixture    Σ_k N(x; θ_k, I)/K                         with the best responsibilities

Arrays are 80-bit or mpmath numbers, see `extended`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.certificates.audit.extended import (
    Array,
    exponential,
    extended,
    square_root,
    with_fifty_digits,
)

# Step and range of the trapezoidal rule in units of the standard normal, for widths of x·θ up to 1. The integrands are
# analytic within π of the real axis, so the error is about e^(-2π²/step), and that of the cut e^(-range²/2).
_STEP, _RANGE = 0.35, 10.0
_FINE_STEP, _FINE_RANGE = 0.2, 14.5
_WIDEST = 2.0**11


class Energy(Protocol):
    """F and its derivatives at λ."""

    def value(self, at: Array) -> float: ...

    def gradient(self, at: Array) -> Array: ...

    def hessian(self, at: Array) -> Array: ...

    def derivatives(self, at: Array) -> tuple[Array, Array]:
        """Return gradient and Hessian."""
        return self.gradient(at), self.hessian(at)


@dataclass(frozen=True, eq=False)
class Linear(Energy):
    features: Array  # (n, d)
    targets: Array  # (n,)
    noise_std: float
    prior_std: float

    def value(self, at: Array) -> float:
        mean, std = np.split(at, 2)
        misfit = ((self.targets - self.features @ mean) ** 2).sum() + (self.features**2).sum(0) @ std**2
        return float(misfit / (2 * extended(self.noise_std) ** 2)) + _prior_value(at, self.prior_std)

    def gradient(self, at: Array) -> Array:
        mean, std = np.split(at, 2)
        residual = self.features @ mean - self.targets
        rows = np.concatenate([self.features.T @ residual, (self.features**2).sum(0) * std])
        return rows / _square(self.noise_std, at) + _prior_gradient(at, self.prior_std)

    def hessian(self, at: Array) -> Array:
        moments = self.features.T @ self.features / _square(self.noise_std, at)
        zeros = np.zeros_like(moments)
        rows = np.block([[moments, zeros], [zeros, np.diag(moments.diagonal())]])
        return rows + _prior_hessian(at, self.prior_std)


@dataclass(frozen=True, eq=False)
class Logistic(Energy):
    features: Array  # (n, d)
    signs: Array  # (n,): 1 for the label 1, -1 for 0
    prior_std: float

    def value(self, at: Array) -> float:
        loss = sum(float((weight * np.logaddexp(0, -margins)).sum()) for _, margins, _, weight in self._nodes(at))
        return loss + _prior_value(at, self.prior_std)

    def gradient(self, at: Array) -> Array:
        return self._gradient(at, *self._expectations(at, 2))

    def hessian(self, at: Array) -> Array:
        return self.derivatives(at)[1]

    def derivatives(self, at: Array) -> tuple[Array, Array]:
        """With ψ_k = E ℓ^(k) and y = x²∘std the Hessian has the blocks Σ ψ₂ xxᵀ, Σ ψ₃ xyᵀ, Σ ψ₄ yyᵀ + diag Σ ψ₂ x²."""
        first, second, third, fourth = self._expectations(at, 4)
        x, y = self.features, self.features**2 * np.split(at, 2)[1]
        mixed = (x * third[:, None]).T @ y
        widths = (y * fourth[:, None]).T @ y + np.diag(second @ x**2)
        rows = np.block([[(x * second[:, None]).T @ x, mixed], [mixed.T, widths]])
        return self._gradient(at, first, second), rows + _prior_hessian(at, self.prior_std)

    def _gradient(self, at: Array, first: Array, second: Array) -> Array:
        """Return Σ ψ₁ x for the means and Σ ψ₂ x²∘std for the standard deviations.

        The derivative with respect to the variance of a Gaussian is half the second derivative (heat equation).
        """
        rows = np.concatenate([first @ self.features, (second @ self.features**2) * np.split(at, 2)[1]])
        return rows + _prior_gradient(at, self.prior_std)

    def _expectations(self, at: Array, orders: int) -> list[Array]:
        totals = [np.zeros(len(self.features), dtype=at.dtype) for _ in range(orders)]
        for rows, margins, signs, weight in self._nodes(at):
            for total, derivative in zip(totals, _loss_derivatives(margins, signs, orders), strict=True):
                total[rows] = (weight * derivative).sum(1)
        return totals

    def _nodes(self, at: Array) -> list[tuple[Array, Array, Array, Array]]:
        """Return for groups of rows with widths within a factor of 2: positions, margins s·x·θ, signs and weights."""
        mean, std = np.split(at, 2)
        centre, width = self.features @ mean, square_root((self.features**2) @ std**2)
        if not np.max(width) <= _WIDEST:
            raise ArithmeticError(f"the logit of a row has the standard deviation {float(np.max(width)):.3g}")
        levels = np.maximum(0, np.ceil(np.log2(np.maximum(width.astype(float), 1)))).astype(int)
        groups = []
        for level in np.unique(levels):
            rows = np.flatnonzero(levels == level)
            nodes, weight = _trapezoid(int(level), at.dtype == object)
            signs = self.signs[rows][:, None]
            margins = signs * (centre[rows][:, None] + width[rows][:, None] * nodes)
            groups.append((rows, margins, signs, weight))
        return groups


@dataclass(frozen=True, eq=False)
class Softmax(Energy):
    """θ has one row for each class. The noise is data: the energy under judgement is defined by it."""

    features: Array  # (n, d)
    targets: Array  # (n, classes): 1 for the label, else 0
    noise: Array  # (draws, classes·d)
    prior_std: float

    def value(self, at: Array) -> float:
        loss = extended(0.0)
        for draw in self.noise:
            logits = self._logits(at, draw)
            largest = logits.max(1)
            normaliser = largest + np.log(np.exp(logits - largest[:, None]).sum(1))
            loss = loss + normaliser.sum() - (logits * self.targets).sum()
        return float(loss / len(self.noise)) + _prior_value(at, self.prior_std)

    def gradient(self, at: Array) -> Array:
        total = np.zeros_like(at)
        for draw in self.noise:
            slope = ((self._probabilities(at, draw) - self.targets).T @ self.features).reshape(-1)
            total = total + np.concatenate([slope, slope * draw])
        return total / len(self.noise) + _prior_gradient(at, self.prior_std)

    def hessian(self, at: Array) -> Array:
        size, d = len(at) // 2, self.features.shape[1]
        total = np.zeros((2 * size, 2 * size), dtype=at.dtype)
        for draw in self.noise:
            p = self._probabilities(at, draw)
            joint = (p[:, :, None] * self.features[:, None, :]).reshape(len(p), size)
            curvature = -(joint.T @ joint)
            for k in range(p.shape[1]):
                block = slice(k * d, (k + 1) * d)
                curvature[block, block] += joint[:, block].T @ self.features
            scaled = curvature * draw
            total += np.block([[curvature, scaled], [scaled.T, scaled * draw[:, None]]])
        return total / len(self.noise) + _prior_hessian(at, self.prior_std)

    def _logits(self, at: Array, draw: Array) -> Array:
        mean, std = np.split(at, 2)
        logits: Array = self.features @ (mean + std * draw).reshape(self.targets.shape[1], -1).T
        return logits

    def _probabilities(self, at: Array, draw: Array) -> Array:
        logits = self._logits(at, draw)
        mass = exponential(logits - logits.max(1)[:, None])
        probabilities: Array = mass / mass.sum(1)[:, None]
        return probabilities


@dataclass(frozen=True, eq=False)
class Mixture(Energy):
    """Means of component k at positions k·d to (k+1)·d - 1."""

    rows: Array  # (n, d)
    components: int
    prior_std: float

    def value(self, at: Array) -> float:
        exponents, largest = self._exponents(at)
        evidence = float((largest + np.log(np.exp(exponents - largest[:, None]).sum(1))).sum())
        n, d = self.rows.shape
        constant: float = n * (math.log(self.components) + d / 2 * math.log(2 * math.pi))
        return constant - evidence + _prior_value(at, self.prior_std)

    def gradient(self, at: Array) -> Array:
        mean, std = self._split(at)
        share, offset = self.responsibilities(at), self._offsets(mean)
        means = -(share[:, :, None] * offset).sum(0)
        stds = share.sum(0)[:, None] * std
        return np.concatenate([means.reshape(-1), stds.reshape(-1)]) + _prior_gradient(at, self.prior_std)

    def hessian(self, at: Array) -> Array:
        """With u_k = (x - mean_k, -std_k) in block k: Σ [Σ_k φ_k P_k - Cov_φ(u)], where P_k is the identity there."""
        mean, std = self._split(at)
        share, (n, d), size = self.responsibilities(at), self.rows.shape, len(at)
        total = np.zeros((size, size), dtype=at.dtype)
        weighted = np.zeros((n, size), dtype=at.dtype)
        offset = self._offsets(mean)
        for k in range(self.components):
            positions = np.concatenate([k * d + np.arange(d), size // 2 + k * d + np.arange(d)])
            u = np.concatenate([offset[:, k], np.broadcast_to(-std[k], (n, d))], 1)
            weighted[:, positions] = share[:, k, None] * u
            total[np.ix_(positions, positions)] += share[:, k].sum() * np.eye(2 * d) - weighted[:, positions].T @ u
        hessian: Array = total + weighted.T @ weighted + _prior_hessian(at, self.prior_std)
        return hessian

    def responsibilities(self, at: Array) -> Array:
        exponents, largest = self._exponents(at)
        mass = exponential(exponents - largest[:, None])
        shares: Array = mass / mass.sum(1)[:, None]
        return shares

    def sweep(self, at: Array) -> Array:
        """Return the best q given the responsibilities at λ."""
        share = self.responsibilities(at)
        precision = (share.sum(0) + 1 / _square(self.prior_std, at))[:, None] + np.zeros_like(self.rows[:1])
        mean = (share.T @ self.rows) / precision
        return np.concatenate([mean.reshape(-1), (1 / square_root(precision)).reshape(-1)])

    def _split(self, at: Array) -> tuple[Array, Array]:
        mean, std = at.reshape(2, self.components, -1)
        return mean, std

    def _offsets(self, mean: Array) -> Array:
        return self.rows[:, None, :] - mean

    def _exponents(self, at: Array) -> tuple[Array, Array]:
        mean, std = self._split(at)
        exponents = -((self._offsets(mean) ** 2).sum(2) + (std**2).sum(1)) / 2
        return exponents, exponents.max(1)


def _loss_derivatives(margins: Array, signs: Array, orders: int) -> list[Array]:
    """Return the first to fourth derivatives of log(1 + e^(-s t)) in t, at margins s·t."""
    small = exponential(-np.abs(margins))
    right, wrong = np.where(margins > 0, 1, small) / (1 + small), np.where(margins > 0, small, 1) / (1 + small)
    curvature = wrong * right
    derivatives = [-signs * wrong, curvature, signs * curvature * (wrong - right), curvature * (1 - 6 * curvature)]
    return derivatives[:orders]


def _trapezoid(level: int, fine: bool) -> tuple[Array, Array]:
    """Return nodes and weights for the standard normal, for integrands of a width of at most 2^level."""
    step, end = (_FINE_STEP, _FINE_RANGE) if fine else (_STEP, _RANGE)
    count = math.ceil(end / step) * 2**level
    nodes = extended(np.arange(-count, count + 1)) * (extended(step) / 2**level)
    if fine:
        nodes = with_fifty_digits(nodes)
    mass = exponential(-(nodes**2) / 2)
    return nodes, mass / mass.sum()


def _square(scale: float, like: Array) -> Array:
    """Return scale² in the arithmetic of the array."""
    return with_fifty_digits(extended(scale)) ** 2 if like.dtype == object else extended(scale) ** 2


def _prior_value(at: Array, prior_std: float) -> float:
    std = np.split(at, 2)[1]
    return float(
        (at**2).sum() / (2 * _square(prior_std, at)) - np.log(std).sum() + len(std) * (math.log(prior_std) - 0.5)
    )


def _prior_gradient(at: Array, prior_std: float) -> Array:
    std = np.split(at, 2)[1]
    gradient: Array = at / _square(prior_std, at) - np.concatenate([np.zeros_like(std), 1 / std])
    return gradient


def _prior_hessian(at: Array, prior_std: float) -> Array:
    std = np.split(at, 2)[1]
    return np.diag(np.concatenate([np.zeros_like(std), 1 / std**2]) + 1 / _square(prior_std, at))
