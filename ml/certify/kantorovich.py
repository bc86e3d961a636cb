"""Bound on the KL divergence to the retrained posterior, without retraining (Newton-Kantorovich theorem).

At the parameters λ⁻ of the processed posterior, with the energy F over the retained data, both in coordinates scaled by
the widths (`ml.models.family`):

    g = ∇F   H = ∇²F   m ≤ λ_min(H)   δ = H⁻¹g   η ≥ ‖δ‖   L ≥ ‖∇³F‖ on the ball of radius 2η   k = Lη

where η, L and the ball are in the norm of H, ‖v‖ = √(vᵀHv). If m > 0 and k < ½, F has exactly one minimiser λ* within
r = 2η/(1+√(1-2k)) of λ⁻, and λ* lies within r₂ = 2kη/(1+√(1-2k))² of the Newton point λ⁻ - δ. Hence KL(q_λ⁻ ‖ q_λ*) is
at most the supremum of KL(q_λ⁻ ‖ q_λ) over the box of half-width r₂/√m around the Newton point. (k = ½ is excluded: λ*
may then be an inflection point.)

The theorem holds in any norm that comes from an inner product, and the divergence does not depend on the coordinates.
In the norm of H the curvature is 1 in every direction, so directions that only the prior curves do no harm: with the
Euclidean norm, k would be Lη/m, and both η and L would be governed by their own worst direction. A family states
|∇³F[v,v,v]| ≤ |Qv| vᵀBv for all points with |Q(λ - λ⁻)| ≤ R, where Q projects out directions of the means on which no
row depends, if there are any. So L = βc if B ≼ βH, |Qv| ≤ c‖v‖ and R = 2ηc. (The norm of a symmetric trilinear form is
reached with its three arguments equal: Banach.) Scales are powers of two, so that scaling is exact in floating point.

The paper's ε is its theorem on mean-field Gaussians in plain coordinates, with r times the largest scale in place of
the unknown distance.

Rounding is accounted for: η and r₂ include bounds on the rounding errors of g, H and the solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.models.family import Expansion, Family, Rounding
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl
from ml.solvers import Solution, solve

DIRECTION = "epsilon bounds KL(processed ‖ reference), epsilon_reverse bounds KL(reference ‖ processed)"
NOT_PROVED = (
    "The reference is the minimum in the basin where the processed posterior lies; "
    "training from scratch may end in another one.",
    "The model family, its prior and the retained rows are taken as given; that they describe the world is not shown.",
    "Copies of the forgotten rows, and of models trained on them, that are kept outside Lethe are not covered.",
    "The divergence speaks of draws from the posterior; releasing its parameters themselves is another matter.",
)

COORDINATES = (
    "each variational parameter divided by the power of two nearest to its width; η and L in the norm of the Hessian"
)

_EPS = torch.finfo(torch.float64).eps
# Added to half-widths of the box beyond what the analysis requires, to cover rounding in the box itself: a few
# roundings of numbers below 4, since scaled widths are at most √2 and the Newton step is shorter than the smallest.
_BOX_SLACK = 1e-13
# Larger than the relative rounding error of the few scalar operations it multiplies.
_INFLATION = 1 + 1e-10
# β is guessed up to this factor, and as often enlarged by it where rounding prevents the proof.
_GUESS_MARGIN, _MAX_GUESSES = 1.01, 3
# Below this size, evaluating a subset of the rows first saves nothing.
_MIN_SUBSET_ROWS = 1_000


@dataclass(frozen=True)
class Constants:
    """Numbers behind the bound, in scaled coordinates; NaN or infinity where an earlier condition failed."""

    coordinates: str
    gradient_norm: float
    newton_decrement: float
    newton_step_norm: float
    lambda_min: float
    lipschitz: float
    kantorovich: float
    radius: float
    rounding: float
    paper_epsilon: float


def certify(family: Family, posterior: MeanFieldGaussian, retained: Tensor) -> Certificate:
    """Bound the divergence of `posterior` from the result of training on `retained` alone."""
    family.check_data(retained)
    family.check_posterior(posterior)
    return certify_expansion(family, family.expand(posterior, retained), retained)


def certify_expansion(
    family: Family, expansion: Expansion, retained: Tensor, newton: Solution | None = None
) -> Certificate:
    """Certify a posterior given its expansion over the retained data, and optionally δ in plain coordinates.

    A failed condition yields NaN or infinity, which fails every condition that depends on it.
    """
    gradient, hessian, std = _scaled(expansion)
    lambda_min = _least_curvature(hessian) - expansion.rounding.hessian
    step = _newton_step(expansion, newton, lambda_min)
    stretch = lambda_min**-0.5 * _INFLATION if lambda_min > 0 else math.nan  # |v| ≤ stretch·‖v‖
    reach = _reach(family, expansion, hessian, stretch)
    error = _newton_error(gradient, hessian, step, expansion.rounding, stretch, reach)
    eta = _norm(step, hessian, expansion.rounding.hessian) + error
    third = partial(_third_derivative, family, expansion, hessian, 2 * eta * reach)
    lipschitz = _lipschitz(retained, lambda rows: third(rows) * reach, eta)
    k = lipschitz * eta * _INFLATION
    root = math.sqrt(1 - 2 * k) if k < 0.5 else math.nan
    radius = 2 * eta / (1 + root) * stretch * _INFLATION
    rounding = error * stretch + _BOX_SLACK
    half_width = 2 * k * eta / (1 + root) ** 2 * stretch * _INFLATION + rounding
    assumptions = _assumptions(lambda_min, 2 * eta * reach, float(std.min()), k)
    proved = all(assumption.holds for assumption in assumptions)
    epsilon, reverse = _worst_kl(std, step, half_width, radius) if proved else (math.inf, math.inf)
    plain_radius = radius * float(expansion.scale.max())
    return Certificate(
        epsilon=epsilon,
        epsilon_reverse=reverse,
        level="proved" if proved else "none",
        reference=name_reference(family),
        direction=DIRECTION,
        n_retained=len(retained),
        assumptions=assumptions,
        constants=Constants(
            coordinates=COORDINATES,
            gradient_norm=float(gradient.norm()),
            newton_decrement=float(gradient.dot(step).sqrt()),
            newton_step_norm=eta,
            lambda_min=lambda_min,
            lipschitz=lipschitz,
            kantorovich=k,
            radius=radius,
            rounding=rounding,
            paper_epsilon=paper_epsilon(expansion.posterior, plain_radius) if proved else math.inf,
        ),
        not_proved=NOT_PROVED[1:] if family.convex else NOT_PROVED,
    )


def _scaled(expansion: Expansion) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient, the Hessian and the widths in scaled coordinates."""
    scale = expansion.scale
    std = expansion.posterior.std.flatten()
    return scale * expansion.gradient, scale.unsqueeze(1) * expansion.hessian * scale, std / scale[: len(std)]


def _newton_step(expansion: Expansion, newton: Solution | None, lambda_min: float) -> Tensor:
    """Return δ in scaled coordinates, NaN unless the Hessian is known to be positive definite."""
    if not lambda_min > 0:
        return torch.full_like(expansion.gradient, math.nan)
    if newton is None:
        newton = solve(expansion.hessian, expansion.gradient)
    return newton.x / expansion.scale


def name_reference(family: Family) -> str:
    """Return what the processed posterior is compared with, in words."""
    minimiser = "the one minimiser" if family.convex else "the minimiser, in the same basin,"
    return f"{minimiser} of the retained energy, which is {family.energy_name}"


def _lipschitz(retained: Tensor, bound: Callable[[Tensor], float], eta: float) -> float:
    """Return L, the bound over the retained rows, or a lower bound of it that already rules out a certificate.

    L grows with every row, so a subset of the rows may settle that without a pass over all of them.
    """
    subset = retained[: len(retained) // 8]
    if len(subset) >= _MIN_SUBSET_ROWS:
        lower_bound = bound(subset)
        if not lower_bound * eta < 0.5:
            return lower_bound
    return bound(retained)


def _third_derivative(family: Family, expansion: Expansion, hessian: Tensor, radius: float, rows: Tensor) -> float:
    """Return β with B ≼ βH for the third derivative over these rows on a ball of that radius; inf if there is none."""
    bound = family.third_derivative_bound(expansion.posterior, rows, radius)
    return _relative_to(hessian, expansion.rounding.hessian, bound)


def _reach(family: Family, expansion: Expansion, hessian: Tensor, stretch: float) -> float:
    """Return c with |Qv| ≤ c‖v‖, where Q projects out what no row depends on."""
    directions = family.invariant_directions(expansion.posterior)
    if directions is None or math.isnan(stretch):
        return stretch
    identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    projection = (1 + 16 * _EPS) * identity - directions @ directions.T  # 16ε covers rounding of the directions
    return min(stretch, math.sqrt(_relative_to(hessian, expansion.rounding.hessian, projection)) * _INFLATION)


def _relative_to(hessian: Tensor, hessian_rounding: float, matrix: Tensor) -> float:
    """Return β such that the matrix is ≼ βH, rounding of H included; inf if there is none.

    eigvalsh guesses β, and a Cholesky factorisation of βH - matrix proves it, as in `_least_curvature`.
    """
    if not bool(torch.isfinite(matrix).all()):
        return math.inf
    identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    lowest = hessian - hessian_rounding * identity
    factor = torch.linalg.cholesky_ex(lowest).L
    half = torch.linalg.solve_triangular(factor, matrix, upper=False)
    relative = torch.linalg.solve_triangular(factor, half.T, upper=False)
    beta = float(torch.linalg.eigvalsh(relative)[-1])
    for _ in range(_MAX_GUESSES):
        beta *= _GUESS_MARGIN
        difference = beta * lowest - matrix
        slack = _cholesky_slack(difference) + 4 * _EPS * float(beta * lowest.norm() + matrix.norm())
        if int(torch.linalg.cholesky_ex(difference - slack * identity).info) == 0:
            return beta
    return math.inf


def _norm(step: Tensor, hessian: Tensor, hessian_rounding: float) -> float:
    """Return an upper bound of √(δᵀHδ)."""
    rounding = hessian_rounding + (2 * len(step) + 8) * _EPS * float(hessian.norm())
    return math.sqrt(max(float(step @ hessian @ step), 0.0) + rounding * float(step.dot(step))) * _INFLATION


def certify_retrained(family: Family, expansion: Expansion, retained: Tensor) -> Certificate:
    """Certify a posterior trained on the retained rows only: ε is 0. The constants show how well training converged."""
    return replace(
        certify_expansion(family, expansion, retained),
        epsilon=0.0,
        epsilon_reverse=0.0,
        level="retrained",
        reference="this posterior itself, trained from scratch on the retained rows",
        assumptions=(
            Assumption("retrained", True, len(retained), len(retained), "training has read the retained rows only"),
        ),
        not_proved=NOT_PROVED[1:],
    )


def _least_curvature(hessian: Tensor) -> float:
    """Return a lower bound of λ_min: eigvalsh guesses it, a Cholesky factorisation proves it.

    A factorisation of A that succeeds is exact for A + Δ with ‖Δ‖ ≤ γ_(p+1)/(1-γ_(p+1)) tr A (Higham, Accuracy and
    Stability of Numerical Algorithms, theorem 10.3), so λ_min(A) ≥ -‖Δ‖.
    """
    size, slack = len(hessian), _cholesky_slack(hessian)
    guess = float(torch.linalg.eigvalsh(hessian)[0]) - slack
    _, failed_at = torch.linalg.cholesky_ex(
        hessian - guess * torch.eye(size, dtype=hessian.dtype, device=hessian.device)
    )
    return guess - slack if int(failed_at) == 0 else -math.inf


def _cholesky_slack(matrix: Tensor) -> float:
    return 4 * (len(matrix) + 4) * _EPS * float(matrix.diagonal().abs().sum())


def _newton_error(
    gradient: Tensor, hessian: Tensor, step: Tensor, rounding: Rounding, stretch: float, reach: float
) -> float:
    """Bound the error of the computed δ in the norm of H: that of g - Hδ in the dual norm, with all rounding.

    The dual norm is at most |·|/√m, and at most c|·| for what is orthogonal to the invariant directions, as
    vᵀd = (Qv)ᵀd. The residual is recomputed: the solver's own report is not trusted.
    """
    step_norm = float(step.norm())
    residual = float((gradient - hessian @ step).norm())
    residual_rounding = (len(step) + 4) * _EPS * float(hessian.norm() * step_norm + gradient.norm())
    anywhere = residual + residual_rounding + rounding.gradient_anywhere + rounding.hessian * step_norm
    return (anywhere * stretch + rounding.gradient * reach) * _INFLATION


def paper_epsilon(posterior: MeanFieldGaussian, radius: float) -> float:
    """Return the paper's bound (2(M₁+M₂)‖Δλ‖₁ + ‖Δλ‖₂²) / 2M₁² for a distance ‖Δλ‖₂ ≤ r.

    ‖Δλ‖₁ ≤ r√(2d), and every std on the ball lies within M₁..M₂. The bound is valid, but of first order in the distance
    while the divergence is of second order. It is infinite if a std may be zero on the ball.
    """
    min_std, max_std = float(posterior.std.min()) - radius, float(posterior.std.max()) + radius
    if min_std <= 0:
        return math.inf
    l1_distance = math.sqrt(2 * posterior.std.numel()) * radius
    return (2 * (min_std + max_std) * l1_distance + radius**2) / (2 * min_std**2) * _INFLATION


def _assumptions(lambda_min: float, ball: float, smallest_std: float, k: float) -> tuple[Assumption, ...]:
    return (
        Assumption(
            "curvature",
            lambda_min > 0,
            lambda_min,
            0.0,
            "the retained energy curves upwards in every direction at the processed posterior",
        ),
        Assumption(
            "domain",
            ball < smallest_std,
            ball,
            smallest_std,
            "no standard deviation reaches zero within the ball that is searched",
        ),
        Assumption(
            "kantorovich",
            k < 0.5,
            k,
            0.5,
            "Newton's method, started at the processed posterior, converges to one minimiser close by",
        ),
    )


def _worst_kl(std: Tensor, newton_step: Tensor, half_width: float, radius: float) -> tuple[float, float]:
    """Return the supremum of the KL divergence over the box, in both directions, coordinate by coordinate.

    Both divergences grow with the distance D of the means. As functions of the std s of λ, their derivatives
    d/ds KL(q⁻‖q) = (s² - s⁻² - D²)/s³ and d/ds KL(q‖q⁻) = s/s⁻² - 1/s change sign once, from - to +. Each divergence
    first falls and then rises, so its maximum over an interval is at one of the two ends.
    """
    mean_step, std_step = newton_step.chunk(2)
    mean_distance = mean_step.abs() + half_width
    # The minimiser also lies in the ball of this radius, which keeps the lower end positive.
    ends = torch.stack([torch.maximum(std - std_step - half_width, std - radius), std - std_step + half_width])
    own = std.expand_as(ends)
    divergences = gaussian_kl(mean_distance, torch.stack([own, ends]), torch.stack([ends, own]))  # (direction, end, p)
    forward, reverse = divergences.amax(1).sum(1).tolist()
    return forward * _INFLATION, reverse * _INFLATION
