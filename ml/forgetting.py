"""Making a trained posterior forget a group of rows: an influence step, then Newton steps until the bound is met."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from torch import Tensor

from ml.certify import Certificate
from ml.certify.kantorovich import certify_expansion
from ml.errors import InvalidInput, NumericalFailure
from ml.groups import retained_rows
from ml.inference import newton
from ml.models.family import Expansion, Family
from ml.posterior import MeanFieldGaussian
from ml.solvers import Solution, solve

_MAX_NEWTON_STEPS = 20
# The influence step may take away at most this share of any precision 1/σ².
_LARGEST_PRECISION_LOSS = 0.95
# The influence step is of first order in the group's share of the rows. Where that is large, a few cheap sweeps over
# what is retained spare more than as much in Newton steps; they count with the influence step as one rung.
_LARGE_SHARE = 0.25
_SWEEPS = 4

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Rung:
    """One way of forgetting that was tried, and the bound it reached.

    The bound is infinite, at level "none", where none holds, or none could be within policy and it was left out.
    """

    name: Literal["influence", "newton"]
    steps: int
    epsilon: float
    level: str
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; an infinite bound, which JSON lacks, becomes None."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


@dataclass(frozen=True, eq=False)
class Outcome:
    """`hessian` is ∇²F at the new posterior over the retained rows: kept, it spares the next `forget` a pass."""

    posterior: MeanFieldGaussian
    hessian: Tensor
    certificate: Certificate
    rungs: tuple[Rung, ...]
    seconds: float


def forget(
    family: Family,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    epsilon: float,
    on_progress: OnProgress | None = None,
    hessian: Tensor | None = None,
) -> Outcome:
    """Remove the rows at positions `forgotten` of `data`, until the certified KL bound is within `epsilon`.

    The outcome may miss `epsilon`: compare it with `certificate.epsilon` before publishing. `on_progress(phase,
    fraction)` is told before each step and at the end. `hessian` is that of `influence_step`: a wrong one costs
    steps, never the validity of the certificate, which is computed afresh on what is retained.
    """
    started = time.perf_counter()
    retained = _validated_retained(family, posterior, data, forgotten, epsilon)
    report = on_progress or _silent
    report("influence", 0.0)
    processed = influence_step(family, posterior, data, forgotten, hessian)
    for _ in range(_SWEEPS if len(forgotten) > _LARGE_SHARE * len(data) else 0):
        processed = family.sweep(processed, retained)
    at = family.expand(processed, retained)
    ahead = _newton_ahead(at)
    certificate = certify_expansion(family, at, retained, ahead) if _within_reach(at, ahead, epsilon) else None
    rungs = [_rung("influence", 1, certificate, started)]
    if certificate is None or certificate.epsilon > epsilon:
        refining = time.perf_counter()
        at, certificate, steps = _refine(family, at, ahead, retained, epsilon, report)
        rungs.append(_rung("newton", steps, certificate, refining))
    report("done", 1.0)
    return Outcome(at.posterior, at.hessian, certificate, tuple(rungs), time.perf_counter() - started)


def _refine(
    family: Family, at: Expansion, ahead: Solution | None, retained: Tensor, epsilon: float, report: OnProgress
) -> tuple[Expansion, Certificate, int]:
    for step in range(_MAX_NEWTON_STEPS):
        report("newton", (step + 1) / (step + 2))
        try:
            at = newton.newton_step(family, at, retained, None if ahead is None else ahead.x)
        except NumericalFailure:
            # So much was forgotten that the basin is gone: the certificate says so, and the caller retrains.
            return at, certify_expansion(family, at, retained), step
        ahead = _newton_ahead(at)
        if _within_reach(at, ahead, epsilon):
            certificate = certify_expansion(family, at, retained, ahead)
            if certificate.epsilon <= epsilon:
                return at, certificate, step + 1
    return at, certify_expansion(family, at, retained), _MAX_NEWTON_STEPS


def _newton_ahead(at: Expansion) -> Solution | None:
    """H⁻¹∇F, solved for once: it tells whether a certificate is in reach, enters it, and is the next step."""
    try:
        return solve(at.hessian, at.gradient)
    except NumericalFailure:
        return None


def _within_reach(at: Expansion, ahead: Solution | None, epsilon: float) -> bool:
    """Whether a certificate here could be within `epsilon`; one that must miss need not be computed.

    The bound is a supremum over a box around the Newton point, so it is never below the divergence to that point, nor
    below the part of it that the means make: ½|Δμ/σ'|².
    """
    if ahead is None:
        return False
    mean_step, std_step = ahead.x.chunk(2)
    apart = mean_step / (at.posterior.std.flatten() - std_step)
    return 0.5 * float(apart.dot(apart)) <= epsilon


def influence_step(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, hessian: Tensor | None = None
) -> MeanFieldGaussian:
    """γ⁻ = γ + H(S)⁻¹ Σ_{z∈S'} ∇h(γ, z), followed along the natural parameters (μ/σ², 1/σ²).

    `hessian` is H(S), which training or the last forgetting returned, if it was kept.

    With (dm, ds) the step in (μ, σ), its push-forward is d(1/σ²) = -2ds/σ³ and d(μ/σ²) = dm/σ² - 2μ ds/σ³. Adding it
    and mapping back leaves the share c = 1 - 2ds/σ of the precision:  μ⁻ = μ + dm/c,  σ⁻ = σ/√c.
    """
    if hessian is None:
        hessian = family.expand(posterior, data).hessian
    dm, ds = solve(hessian, family.group_gradient(posterior, data[forgotten])).x.chunk(2)
    loss = 2 * ds.reshape(posterior.std.shape) / posterior.std
    length = min(1.0, _LARGEST_PRECISION_LOSS / max(float(loss.max()), _LARGEST_PRECISION_LOSS))
    kept = 1 - length * loss
    return MeanFieldGaussian(
        posterior.mean + length * dm.reshape(posterior.mean.shape) / kept, posterior.std / kept.sqrt()
    )


def newton_step(family: Family, posterior: MeanFieldGaussian, retained: Tensor) -> MeanFieldGaussian:
    """γ - H(R)⁻¹ ∇F(γ, R) on the retained data, damped so that the energy does not rise."""
    return newton.newton_step(family, family.expand(posterior, retained), retained).posterior


def _validated_retained(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, epsilon: float
) -> Tensor:
    family.check_data(data)
    family.check_posterior(posterior)
    if not 0 < epsilon < math.inf:
        raise InvalidInput(f"epsilon is {epsilon}: pass a positive finite number of nats")
    retained = retained_rows(data, forgotten)
    family.check_data(retained)
    return retained


def _rung(name: Literal["influence", "newton"], steps: int, certificate: Certificate | None, since: float) -> Rung:
    seconds = time.perf_counter() - since
    if certificate is None:
        return Rung(name, steps, math.inf, "none", seconds)
    return Rung(name, steps, certificate.epsilon, certificate.level, seconds)


def _silent(_phase: str, _fraction: float) -> None:
    pass
