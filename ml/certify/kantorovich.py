"""Bound on the KL divergence to the retrained posterior, without retraining (Newton-Kantorovich theorem).

At the parameters λ⁻ of the processed posterior, with the energy F over the retained data, both in coordinates scaled by
the widths (`ml.models.family`):

    g = ∇F   H = ∇²F   m ≤ λ_min(H)   δ = H⁻¹g   η ≥ ‖δ‖   L ≥ ‖∇³F‖ on the ball of radius 2η   k = Lη/m

If m > 0 and k < ½, F has exactly one minimiser λ* within r = 2η/(1+√(1-2k)) of λ⁻, and λ* lies within
r₂ = 2kη/(1+√(1-2k))² of the Newton point λ⁻ - δ. Hence KL(q_λ⁻ ‖ q_λ*) is at most the supremum of KL(q_λ⁻ ‖ q_λ) over
the box of half-width r₂ around the Newton point. (k = ½ is excluded: λ* may then be an inflection point.)

The theorem holds in any coordinates, and the divergence is the same in all. In plain ones η, m and L would mix the
units of the columns of the data. Scales are powers of two, so that scaling is exact in floating point.

The paper's ε is its theorem on mean-field Gaussians in plain coordinates, with r times the largest scale in place of
the unknown distance.

Rounding is accounted for: η and r₂ include bounds on the rounding errors of g, H and the solve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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

COORDINATES = "each variational parameter divided by the power of two nearest to its width"

_EPS = torch.finfo(torch.float64).eps
# Added to half-widths of the box beyond what the analysis requires, to cover rounding in the box itself: a few
# roundings of numbers below 4, since scaled widths are at most √2 and the Newton step is shorter than the smallest.
_BOX_SLACK = 1e-13
# Larger than the relative rounding error of the few scalar operations it multiplies.
_INFLATION = 1 + 1e-10
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
    error = _newton_error(gradient, hessian, step, expansion.rounding, lambda_min)
    rounding = error + _BOX_SLACK
    eta = float(step.norm()) + error
    lipschitz = _lipschitz(family, expansion.posterior, retained, eta, lambda_min)
    k = lipschitz * eta / lambda_min * _INFLATION
    root = math.sqrt(1 - 2 * k) if k < 0.5 else math.nan
    radius = 2 * eta / (1 + root) * _INFLATION
    half_width = 2 * k * eta / (1 + root) ** 2 * _INFLATION + rounding
    assumptions = _assumptions(lambda_min, 2 * eta, float(std.min()), k)
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


def _lipschitz(family: Family, posterior: MeanFieldGaussian, retained: Tensor, eta: float, lambda_min: float) -> float:
    """Return L, or a lower bound of it that already rules out a certificate.

    L grows with every row, so a subset of the rows may settle that without a pass over all of them.
    """
    subset = retained[: len(retained) // 8]
    if len(subset) >= _MIN_SUBSET_ROWS:
        lower_bound = family.lipschitz(posterior, subset, 2 * eta)
        if not lower_bound * eta / lambda_min < 0.5:
            return lower_bound
    return family.lipschitz(posterior, retained, 2 * eta)


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
    size = len(hessian)
    slack = 4 * (size + 4) * _EPS * float(hessian.diagonal().abs().sum())
    guess = float(torch.linalg.eigvalsh(hessian)[0]) - slack
    _, failed_at = torch.linalg.cholesky_ex(
        hessian - guess * torch.eye(size, dtype=hessian.dtype, device=hessian.device)
    )
    return guess - slack if int(failed_at) == 0 else -math.inf


def _newton_error(gradient: Tensor, hessian: Tensor, step: Tensor, rounding: Rounding, lambda_min: float) -> float:
    """Bound the error ‖g - Hδ‖/m of the computed δ, with the rounding of g, H and of the residual itself.

    The residual is recomputed: the solver's own report is not trusted.
    """
    step_norm = float(step.norm())
    residual = float((gradient - hessian @ step).norm())
    residual_rounding = (len(step) + 4) * _EPS * float(hessian.norm() * step_norm + gradient.norm())
    return (residual + residual_rounding + rounding.gradient + rounding.hessian * step_norm) / lambda_min


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
