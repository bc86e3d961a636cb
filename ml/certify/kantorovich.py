"""A bound on the KL divergence to the retrained posterior that needs no retraining (Newton-Kantorovich).

At the processed λ⁻, over the retained data:

    g = ∇F   H = ∇²F   m ≤ λ_min(H)   δ = H⁻¹g   η ≥ ‖δ‖   L ≥ ‖∇³F‖ on the ball of radius 2η   k = Lη/m

If m > 0 and k < ½, the retained energy has exactly one minimiser λ* within r = 2η/(1+√(1-2k)) of λ⁻, and it lies
within r₂ = 2kη/(1+√(1-2k))² of the Newton point λ⁻ - δ. So KL(q_λ⁻ ‖ q_λ*) is at most the supremum of KL(q_λ⁻ ‖ q_λ)
over the box of half-width r₂ around that point. (k = ½ is left out: there λ* may be a point of inflection.)

From the same radius: the energy above its minimum, which is the excess of KL(q ‖ exact retained posterior) over that of
q_λ*, is at most ½gᵀδ + Lr³/6 (Taylor, and gᵀd + ½dᵀHd ≥ -½gᵀH⁻¹g for every d); and the paper's ε, its theorem on
mean-field Gaussians with r for the distance that nobody knows.

Nothing is assumed of floating point: η and r₂ are enlarged by the rounding of g, H and the solve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.models.family import Expansion, Family
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl
from ml.solvers import Solution, solve

REFERENCE = "the minimiser of the retained energy in the same basin"
DIRECTION = "epsilon bounds KL(processed ‖ reference), epsilon_reverse bounds KL(reference ‖ processed)"
NOT_PROVED = (
    "The reference is the minimum in the basin where the processed posterior lies; "
    "training from scratch may end in another one.",
    "The model family, its prior and the retained rows are taken as given; that they describe the world is not shown.",
    "Copies of the forgotten rows, and of models trained on them, that are kept outside Lethe are not covered.",
    "The divergence speaks of draws from the posterior; releasing its parameters themselves is another matter.",
)

_EPS = torch.finfo(torch.float64).eps
# Half-widths of the box carry this much more than the analysis asks for, against rounding in the box itself.
_BOX_SLACK = 1e-13
# Above the relative rounding of the few scalar operations it multiplies.
_INFLATION = 1 + 1e-10
# Fewer rows are as soon looked at all.
_WORTH_A_LOOK = 1_000


@dataclass(frozen=True)
class Constants:
    """The numbers the bound was computed from; NaN or infinity where an earlier condition failed."""

    gradient_norm: float
    newton_decrement: float
    newton_step_norm: float
    lambda_min: float
    lipschitz: float
    kantorovich: float
    radius: float
    rounding: float
    excess: float
    """F(λ⁻) - F(λ*): how much farther from the exact retained posterior than the reference is."""
    paper_epsilon: float


def certify(family: Family, posterior: MeanFieldGaussian, retained: Tensor) -> Certificate:
    """Bound how far `posterior` is from what training on `retained` alone would have reached."""
    family.check_data(retained)
    family.check_posterior(posterior)
    return certify_expansion(family, family.expand(posterior, retained), retained)


def certify_expansion(family: Family, at: Expansion, retained: Tensor, newton: Solution | None = None) -> Certificate:
    """`certify`, for a posterior whose expansion over the retained data, and perhaps δ, is already at hand.

    A condition that fails leaves NaN or infinity behind, which fails the conditions that build on it.
    """
    lambda_min = _least_curvature(at.hessian) - at.rounding.hessian
    if not lambda_min > 0:
        newton = _no_solution(at.gradient)
    elif newton is None:
        newton = solve(at.hessian, at.gradient)
    error = _newton_error(at, newton, lambda_min)
    rounding = error + _BOX_SLACK
    eta = float(newton.x.norm()) + error
    lipschitz = _lipschitz(family, at.posterior, retained, eta, lambda_min)
    k = lipschitz * eta / lambda_min * _INFLATION
    root = math.sqrt(1 - 2 * k) if k < 0.5 else math.nan
    radius = 2 * eta / (1 + root) * _INFLATION
    half_width = 2 * k * eta / (1 + root) ** 2 * _INFLATION + rounding
    assumptions = _assumptions(lambda_min, 2 * eta, float(at.posterior.std.min()), k)
    proved = all(assumption.holds for assumption in assumptions)
    epsilon, reverse = _worst_kl(at.posterior, newton.x, half_width, radius) if proved else (math.inf, math.inf)
    return Certificate(
        epsilon=epsilon,
        epsilon_reverse=reverse,
        level="proved" if proved else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(retained),
        assumptions=assumptions,
        constants=Constants(
            gradient_norm=float(at.gradient.norm()),
            newton_decrement=float(at.gradient.dot(newton.x).sqrt()),
            newton_step_norm=eta,
            lambda_min=lambda_min,
            lipschitz=lipschitz,
            kantorovich=k,
            radius=radius,
            rounding=rounding,
            excess=_excess(at, newton, error, lipschitz, radius) if proved else math.inf,
            paper_epsilon=paper_epsilon(at.posterior, radius) if proved else math.inf,
        ),
        not_proved=NOT_PROVED,
    )


def _lipschitz(family: Family, posterior: MeanFieldGaussian, retained: Tensor, eta: float, lambda_min: float) -> float:
    """Every row adds to it: where some are too many for a certificate already, the others need not be looked at."""
    some = retained[: len(retained) // 8]
    if len(some) >= _WORTH_A_LOOK:
        least = family.lipschitz(posterior, some, 2 * eta)
        if not least * eta / lambda_min < 0.5:
            return least
    return family.lipschitz(posterior, retained, 2 * eta)


def certify_retrained(family: Family, at: Expansion, retained: Tensor) -> Certificate:
    """Nothing is left of rows that training never saw: ε is 0. The constants tell how far it was from its minimum."""
    return replace(
        certify_expansion(family, at, retained),
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
    """A lower bound of λ_min: eigvalsh guesses it, Cholesky proves it.

    A factorisation of A that runs to the end is exact for A + Δ with ‖Δ‖ ≤ γ_(p+1)/(1-γ_(p+1)) tr A (Higham, Accuracy
    and Stability, theorem 10.3), so λ_min(A) ≥ -‖Δ‖.
    """
    size = len(hessian)
    slack = 4 * (size + 4) * _EPS * float(hessian.diagonal().abs().sum())
    guess = float(torch.linalg.eigvalsh(hessian)[0]) - slack
    _, failed_at = torch.linalg.cholesky_ex(
        hessian - guess * torch.eye(size, dtype=hessian.dtype, device=hessian.device)
    )
    return guess - slack if int(failed_at) == 0 else -math.inf


def _no_solution(gradient: Tensor) -> Solution:
    return Solution(torch.full_like(gradient, math.nan), math.nan, 0, "none", converged=False)


def _newton_error(at: Expansion, newton: Solution, lambda_min: float) -> float:
    """How far the computed δ can be from H⁻¹g: ‖g - Hδ‖/m, with the rounding of g, H and of the residual itself.

    The residual is computed here, whatever the solver says of its own.
    """
    length = float(newton.x.norm())
    residual = float((at.gradient - at.hessian @ newton.x).norm())
    in_residual = (len(newton.x) + 4) * _EPS * float(at.hessian.norm() * length + at.gradient.norm())
    return (residual + in_residual + at.rounding.gradient + at.rounding.hessian * length) / lambda_min


def _excess(at: Expansion, newton: Solution, error: float, lipschitz: float, radius: float) -> float:
    """½gᵀδ + Lr³/6, with what rounding may hide in g, H and δ over the distance r."""
    decrement = float(at.gradient.dot(newton.x)) + float(at.gradient.norm()) * error
    hidden = (at.rounding.gradient + 0.5 * at.rounding.hessian * radius) * radius
    return (0.5 * decrement + lipschitz * radius**3 / 6 + hidden) * _INFLATION


def paper_epsilon(posterior: MeanFieldGaussian, radius: float) -> float:
    """(2(M₁+M₂)‖Δλ‖₁ + ‖Δλ‖₂²) / 2M₁² with ‖Δλ‖₂ ≤ r, ‖Δλ‖₁ ≤ r√(2d) and every std within M₁..M₂ on the ball.

    Valid, but of first order in a distance in which the divergence is of second; and infinite where a std may be zero.
    """
    narrowest, widest = float(posterior.std.min()) - radius, float(posterior.std.max()) + radius
    if narrowest <= 0:
        return math.inf
    longest = math.sqrt(2 * posterior.std.numel()) * radius
    return (2 * (narrowest + widest) * longest + radius**2) / (2 * narrowest**2) * _INFLATION


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


def _worst_kl(
    posterior: MeanFieldGaussian, newton_step: Tensor, half_width: float, radius: float
) -> tuple[float, float]:
    """sup KL over the box, in both directions, coordinate by coordinate.

    Both divergences grow with the distance of the means. In the std s of λ, with D that distance:
    d/ds KL(q⁻‖q) = (s² - s⁻² - D²)/s³ and d/ds KL(q‖q⁻) = s/s⁻² - 1/s change sign once, from - to +; so each
    divergence falls and then rises, and its maximum over an interval stands at one of the two ends.
    """
    std = posterior.std.flatten()
    mean_step, std_step = newton_step.chunk(2)
    farthest = mean_step.abs() + half_width
    # The minimiser also lies in the ball, which keeps the lower end positive.
    ends = torch.stack([torch.maximum(std - std_step - half_width, std - radius), std - std_step + half_width])
    here = std.expand_as(ends)
    divergences = gaussian_kl(farthest, torch.stack([here, ends]), torch.stack([ends, here]))  # (direction, end, p)
    forward, reverse = divergences.amax(1).sum(1).tolist()
    return forward * _INFLATION, reverse * _INFLATION
