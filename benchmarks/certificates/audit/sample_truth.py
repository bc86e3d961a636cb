"""Exact posteriors of linear and logistic regressions: independent draws, and true divergences of moved draws.

For an affine map T the law of moved draws is T#p_S. With U the potentials and log w = U_S(θ) - U_R(Tθ) + log|det T|,

    KL(T#p_S ‖ p_R) = log E_S w - E_S log w           χ²(p_R ‖ T#p_S) = E_S w² / (E_S w)² - 1

in closed form for Gaussians (linear regression), else by Gauss-Hermite quadrature around the mode on S.

A draw picked from N independent ones with probabilities ∝ w has a law q_N with q_N ≥ p_R·N/(N-1+w), if E_S w = 1. So

    KL(p_R ‖ q_N) ≤ E_R log((N-1+w)/N) ≤ log(1 + χ²/N)

The first bound is the truth of the audit for weighted draws. The second can be vacuous: far tails, which hardly matter
for KL, dominate χ².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.certificates.audit.extended import Array

_NODES = {2: 28, 3: 16}  # per parameter, by the number of parameters
_NEWTON_STEPS = 100
_PROPOSAL_FREEDOM = 6  # degrees of freedom of the t proposals, whose tails are heavier than those of any posterior here
_BURN_IN = 100
_THINNING = 4
_ROWS_AT_ONCE = 2_000
_GAUSSIAN_DRAWS = 20_000


@dataclass(frozen=True, eq=False)
class Regression:
    """Posterior of θ given rows: U(θ) = Σ loss + |θ|²/(2 prior²). `noise_std` is None for logistic regression."""

    rows: Array  # features, and the target or label last
    prior_std: float
    noise_std: float | None

    @property
    def gaussian(self) -> bool:
        return self.noise_std is not None

    @property
    def parameters(self) -> int:
        return int(self.rows.shape[1]) - 1

    def potential(self, theta: Array) -> Array:
        """Return U of each row of θ, without constants."""
        chunks = np.array_split(theta, max(1, len(theta) // _ROWS_AT_ONCE))
        return np.concatenate([self._potential(chunk) for chunk in chunks])

    def mode(self) -> tuple[Array, Array]:
        """Return the mode and the Hessian of U there, by damped Newton steps."""
        theta = np.zeros(self.parameters)
        for _ in range(_NEWTON_STEPS):
            gradient, hessian = self._derivatives(theta)
            step, share = np.linalg.solve(hessian, gradient), 1.0
            while float(self.potential((theta - share * step)[None])[0]) > float(self.potential(theta[None])[0]) + 1e-9:
                share /= 2
            theta = theta - share * step
            if np.sqrt(step @ hessian @ step) < 1e-10:
                break
        return theta, self._derivatives(theta)[1]

    def without(self, forgotten: Array) -> Regression:
        return Regression(np.delete(self.rows, forgotten, axis=0), self.prior_std, self.noise_std)

    def _potential(self, theta: Array) -> Array:
        features, target = self.rows[:, :-1], self.rows[:, -1]
        logits = theta @ features.T
        if self.noise_std is None:
            loss = np.logaddexp(0, (1 - 2 * target) * logits).sum(1)
        else:
            loss = ((target - logits) ** 2).sum(1) / (2 * self.noise_std**2)
        potential: Array = loss + (theta**2).sum(1) / (2 * self.prior_std**2)
        return potential

    def _derivatives(self, theta: Array) -> tuple[Array, Array]:
        features, target = self.rows[:, :-1], self.rows[:, -1]
        if self.noise_std is None:
            p = 1 / (1 + np.exp(-features @ theta))
            slope, curvature = p - target, p * (1 - p)
        else:
            slope, curvature = (features @ theta - target) / self.noise_std**2, np.full(len(target), self.noise_std**-2)
        prior = np.eye(len(theta)) / self.prior_std**2
        return features.T @ slope + prior @ theta, (features * curvature[:, None]).T @ features + prior


@dataclass(frozen=True, eq=False)
class AffineMap:
    """T(θ) = slope·θ + offset."""

    slope: Array
    offset: Array

    def __call__(self, theta: Array) -> Array:
        moved: Array = theta @ self.slope.T + self.offset
        return moved

    @property
    def log_det(self) -> float:
        return float(np.linalg.slogdet(self.slope)[1])


def fit_map(before: Array, after: Array) -> AffineMap:
    """Return the affine map between two sets of draws. ArithmeticError if it is not affine."""
    centre, scale = before.mean(0), before.std(0)
    design = np.column_stack([np.ones(len(before)), (before - centre) / scale])
    solution, *_ = np.linalg.lstsq(design, after, rcond=None)
    misfit = np.abs(design @ solution - after).max(0) / after.std(0)
    if not misfit.max() < 1e-6:
        raise ArithmeticError(f"the draws were not moved by an affine map: {misfit.max():.2g} widths off")
    slope = (solution[1:] / scale[:, None]).T
    return AffineMap(slope, solution[0] - slope @ centre)


def sample(posterior: Regression, chains: int, length: int, correlation: float, rng: np.random.Generator) -> Array:
    """Return draws (chains, length, p) of the posterior itself, with this correlation between neighbours.

    Gaussians: θ' = ρθ + √(1-ρ²)·fresh. Else Metropolis chains with independent proposals that repeat a draw with
    probability ρ.
    """
    mode, hessian = posterior.mode()
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T
    if posterior.gaussian:
        white = rng.normal(size=(chains, length, posterior.parameters))
        for t in range(1, length):
            white[:, t] = correlation * white[:, t - 1] + math.sqrt(1 - correlation**2) * white[:, t]
        draws: Array = mode + white @ root.T
        return draws
    return np.stack([_metropolis(posterior, mode, root, length, correlation, rng) for _ in range(chains)])


def divergences(before: Regression, after: Regression, moved_by: AffineMap) -> tuple[float, float]:
    """Return KL(T#p_S ‖ p_R) and χ²(p_R ‖ T#p_S)."""
    if before.gaussian:
        return _gaussian_divergences(before, after, moved_by)
    theta, mass = _quadrature(before)
    log_w = before.potential(theta) - after.potential(moved_by(theta)) + moved_by.log_det
    log_w = log_w - log_w.max()
    mean = float(mass @ np.exp(log_w))
    return math.log(mean) - float(mass @ log_w), float(mass @ np.exp(2 * log_w)) / mean**2 - 1


def picked_divergence(before: Regression, after: Regression, moved_by: AffineMap, draws: float) -> float:
    """Return E_R log((N-1+w)/N), a bound on KL(p_R ‖ law of one of N moved draws picked by its weight)."""
    if before.gaussian:
        log_w = _gaussian_log_weights(before, after, moved_by)
        return float(np.log1p(np.expm1(log_w) / draws).mean())
    theta, mass = _quadrature(before)
    log_w = before.potential(theta) - after.potential(moved_by(theta)) + moved_by.log_det
    w = np.exp(log_w - log_w.max())
    w = w / (mass @ w)
    return float(mass @ (w * np.log1p((w - 1) / draws)))


def _gaussian_log_weights(before: Regression, after: Regression, moved_by: AffineMap) -> Array:
    """Return log w = log p_R - log T#p_S at independent draws of p_R."""
    (mode, hessian), (target, precision) = before.mode(), after.mode()
    inverse = np.linalg.inv(moved_by.slope)
    moved_precision = inverse.T @ hessian @ inverse
    white = np.random.default_rng(0).normal(size=(_GAUSSIAN_DRAWS, len(mode)))
    offsets = np.linalg.solve(np.linalg.cholesky(precision).T, white.T).T
    gaps = target + offsets - moved_by(mode)
    log_ratio = (np.linalg.slogdet(precision)[1] - np.linalg.slogdet(moved_precision)[1]) / 2
    return np.asarray(log_ratio + ((gaps @ moved_precision * gaps).sum(1) - (white**2).sum(1)) / 2)


def _gaussian_divergences(before: Regression, after: Regression, moved_by: AffineMap) -> tuple[float, float]:
    (mode, hessian), (target, precision) = before.mode(), after.mode()
    covariance = moved_by.slope @ np.linalg.inv(hessian) @ moved_by.slope.T
    gap = target - moved_by(mode)
    relative = np.linalg.eigvals(precision @ covariance).real
    kl = 0.5 * float(gap @ precision @ gap + (relative - 1 - np.log(relative)).sum())
    # ∫ p_R²/q is Gaussian with precision 2P - C⁻¹, infinite unless that is positive definite.
    combined = 2 * precision - np.linalg.inv(covariance)
    if np.linalg.eigvalsh(combined)[0] <= 0:
        return kl, math.inf
    slope = 2 * precision @ gap
    log_determinants = np.linalg.slogdet(covariance)[1] / 2 + np.linalg.slogdet(precision)[1]
    exponent = slope @ np.linalg.solve(combined, slope) / 2 - gap @ precision @ gap
    return kl, math.expm1(log_determinants - np.linalg.slogdet(combined)[1] / 2 + exponent)


def _quadrature(posterior: Regression) -> tuple[Array, Array]:
    """Return nodes and their masses, 1 in all, under the posterior."""
    mode, hessian = posterior.mode()
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T
    line, weight = np.polynomial.hermite_e.hermegauss(_NODES[posterior.parameters])
    grid = np.stack(np.meshgrid(*[line] * posterior.parameters, indexing="ij"), -1).reshape(-1, posterior.parameters)
    log_weight = np.sum(np.meshgrid(*[np.log(weight)] * posterior.parameters, indexing="ij"), 0).reshape(-1)
    theta = mode + grid @ root.T
    log_mass = log_weight + (grid**2).sum(1) / 2 - posterior.potential(theta)
    mass = np.exp(log_mass - log_mass.max())
    return theta, mass / mass.sum()


def _metropolis(
    posterior: Regression, mode: Array, root: Array, length: int, stay: float, rng: np.random.Generator
) -> Array:
    """Return one chain. It is thinned, so that its draws are nearly independent, before draws are repeated."""
    steps, freedom, p = _BURN_IN + _THINNING * length, _PROPOSAL_FREEDOM, len(mode)
    white = rng.normal(size=(steps, p)) / np.sqrt(rng.chisquare(freedom, (steps, 1)) / freedom)
    proposals = mode + white @ root.T
    log_density = -(freedom + p) / 2 * np.log1p((white**2).sum(1) / freedom)
    log_weights = (-posterior.potential(proposals) - log_density).tolist()
    current, states = 0, []
    for step, chance in enumerate(np.log(rng.random(steps)).tolist()):
        if chance < log_weights[step] - log_weights[current]:
            current = step
        states.append(current)
    moves = np.cumsum(rng.random(length) >= stay) - 1
    return np.asarray(proposals[states[_BURN_IN::_THINNING]][np.maximum(moves, 0)])
