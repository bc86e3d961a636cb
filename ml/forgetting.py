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
from ml.solvers import solve

_MAX_NEWTON_STEPS = 20
# The influence step may take away at most this share of any precision 1/σ².
_LARGEST_PRECISION_LOSS = 0.95

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Rung:
    """One way of forgetting that was tried, and the bound it reached."""

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
    posterior: MeanFieldGaussian
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
) -> Outcome:
    """Remove the rows at positions `forgotten` of `data`, until the certified KL bound is within `epsilon`.

    The outcome may miss `epsilon`: compare it with `certificate.epsilon` before publishing. `on_progress(phase,
    fraction)` is told before each step and at the end.
    """
    started = time.perf_counter()
    retained = _validated_retained(family, posterior, data, forgotten, epsilon)
    report = on_progress or _silent
    report("influence", 0.0)
    at = family.expand(influence_step(family, posterior, data, forgotten), retained)
    certificate = certify_expansion(family, at, retained)
    rungs = [_rung("influence", 1, certificate, started)]
    if certificate.epsilon > epsilon:
        refining = time.perf_counter()
        at, certificate, steps = _refine(family, at, retained, epsilon, report)
        rungs.append(_rung("newton", steps, certificate, refining))
    report("done", 1.0)
    return Outcome(at.posterior, certificate, tuple(rungs), time.perf_counter() - started)


def _refine(
    family: Family, at: Expansion, retained: Tensor, epsilon: float, report: OnProgress
) -> tuple[Expansion, Certificate, int]:
    for step in range(_MAX_NEWTON_STEPS):
        report("newton", (step + 1) / (step + 2))
        try:
            at = newton.newton_step(family, at, retained)
        except NumericalFailure:
            # So much was forgotten that the basin is gone: the certificate says so, and the caller retrains.
            return at, certify_expansion(family, at, retained), step
        if _within_reach(at, epsilon):
            certificate = certify_expansion(family, at, retained)
            if certificate.epsilon <= epsilon:
                return at, certificate, step + 1
    return at, certify_expansion(family, at, retained), _MAX_NEWTON_STEPS


def _within_reach(at: Expansion, epsilon: float) -> bool:
    """Whether a certificate here could be within `epsilon`.

    The bound is a supremum over a box around the Newton point, so it is never below the divergence to that point,
    which costs one solve: a certificate that must miss need not be computed.
    """
    try:
        target = at.posterior.flat() - solve(at.hessian, at.gradient).x
    except NumericalFailure:
        return False
    return bool((target.chunk(2)[1] > 0).all()) and at.posterior.kl(at.posterior.with_flat(target)) <= epsilon


def influence_step(family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor) -> MeanFieldGaussian:
    """γ⁻ = γ + H(S)⁻¹ Σ_{z∈S'} ∇h(γ, z), followed along the natural parameters (μ/σ², 1/σ²).

    With (dm, ds) the step in (μ, σ), its push-forward is d(1/σ²) = -2ds/σ³ and d(μ/σ²) = dm/σ² - 2μ ds/σ³. Adding it
    and mapping back leaves the share c = 1 - 2ds/σ of the precision:  μ⁻ = μ + dm/c,  σ⁻ = σ/√c.
    """
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


def _rung(name: Literal["influence", "newton"], steps: int, certificate: Certificate, since: float) -> Rung:
    return Rung(name, steps, certificate.epsilon, certificate.level, time.perf_counter() - since)


def _silent(_phase: str, _fraction: float) -> None:
    pass
