"""The ladder: rung by rung, from an influence step to retraining, until a model's policy is met.

    influence   γ + H(S)⁻¹ Σ ∇h                 what the forgotten rows pull, taken back to first order
    newton      γ - H(R)⁻¹ ∇F(γ, R), repeated   refined on what is retained
    warm        training on what is retained, started at the trained posterior
    retrain     training on what is retained, from scratch: the reference itself

Every certificate is computed at the posterior that a rung has reached, on what is retained now. So nothing adds up over
a sequence of deletions, and a rung that went wrong costs time only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from ml.certify import Certificate
from ml.certify.kantorovich import certify_expansion, certify_retrained
from ml.errors import NumericalFailure
from ml.forgetting.groups import retained_rows
from ml.forgetting.variational import influence_step
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.models.family import Expansion, Family
from ml.models.newton import newton_step
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import Solution, solve
from vocabulary.rungs import RungName

_MAX_NEWTON_STEPS = 20
# The influence step is of first order in the group's share of the rows. Where that is large, a few cheap sweeps over
# what is retained spare more than as much in Newton steps; they count with the influence step as one rung.
_LARGE_SHARE = 0.25
_SWEEPS = 4
_RETRAINING_SEED = 0

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Step:
    """Where a step has led. `residual` is ‖∇F‖₂ over what is retained: zero at the reference.

    The steps of training are not seen one by one: a warm restart and retraining tell their last. `seconds` are those
    since the start.
    """

    rung: RungName
    step: int
    residual: float
    seconds: float


OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class Rung:
    """One way of forgetting that was tried, and the bound it reached.

    The bound is infinite, at level "none", where none holds, or none could be within policy and it was left out; it
    would have been `at_least` so much. `failure` says why a rung led nowhere.
    """

    name: RungName
    steps: int
    epsilon: float
    level: str
    seconds: float
    at_least: float = 0.0
    failure: str | None = None
    solver: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; an infinite bound, which JSON lacks, becomes None."""
        return {name: None if value == math.inf else value for name, value in asdict(self).items()}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the last rung reached. Publish it only if `policy_met`.

    `hessian` is ∇²F at the new posterior over the retained rows: kept, it spares the next `forget` a pass.
    """

    posterior: MeanFieldGaussian
    hessian: Tensor
    certificate: Certificate
    rungs: tuple[Rung, ...]
    policy_met: bool
    seconds: float


def forget(
    family: Family,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    hessian: Tensor | None = None,
    on_step: OnStep | None = None,
) -> Outcome:
    """Remove the rows at positions `forgotten` of `data`, climbing until `policy` is met or its rungs are used up.

    `on_progress(phase, fraction)` is told before each step and at the end, `on_step` after each step. `hessian` is that
    of `influence_step`: a wrong one costs steps, never the validity of the certificate, which is computed afresh on
    what is retained.
    """
    started = time.perf_counter()
    family.check_data(data)
    family.check_posterior(posterior)
    retained = retained_rows(data, forgotten)
    family.check_data(retained)
    task = _Task(
        family, posterior, data, forgotten, retained, policy, on_progress or _silent, on_step, hessian, started
    )
    place, rungs = _climb(task)
    if place is None:
        raise NumericalFailure("; ".join(f"{rung.name}: {rung.failure}" for rung in rungs))
    certificate = place.certificate or certify_expansion(family, place.at, retained)
    task.report("done", 1.0)
    return Outcome(
        place.at.posterior,
        place.at.hessian,
        certificate,
        tuple(rungs),
        policy.met_by(certificate),
        time.perf_counter() - started,
    )


@dataclass(frozen=True, eq=False)
class _Task:
    family: Family
    before: MeanFieldGaussian
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    policy: Policy
    report: OnProgress
    on_step: OnStep | None
    hessian: Tensor | None
    started: float

    def saw(self, rung: RungName, step: int, at: Expansion) -> Expansion:
        if self.on_step is not None:
            self.on_step(Step(rung, step, float(at.gradient.norm()), time.perf_counter() - self.started))
        return at

    def late(self) -> bool:
        return self.policy.seconds is not None and time.perf_counter() - self.started > self.policy.seconds


@dataclass(frozen=True, eq=False)
class _Place:
    """A posterior that was reached. `ahead` is H⁻¹∇F, solved for once: it tells whether a certificate is in reach,
    enters it, and is the next Newton step. `certificate` is None where none could be within policy.
    """

    at: Expansion
    ahead: Solution | None
    certificate: Certificate | None
    steps: int = 1

    @classmethod
    def reached(cls, task: _Task, at: Expansion, steps: int = 1) -> _Place:
        try:
            ahead = solve(at.hessian, at.gradient)
        except NumericalFailure:
            return cls(at, None, None, steps)
        in_reach = _least_bound(at, ahead) <= task.policy.epsilon
        return cls(at, ahead, certify_expansion(task.family, at, task.retained, ahead) if in_reach else None, steps)

    def met(self, task: _Task) -> bool:
        return self.certificate is not None and task.policy.met_by(self.certificate)

    def rung(self, name: RungName, seconds: float) -> Rung:
        if self.certificate is not None:
            epsilon, level = self.certificate.epsilon, self.certificate.level
            at_least = epsilon if math.isfinite(epsilon) else 0.0
        else:
            epsilon, level = math.inf, "none"
            at_least = 0.0 if self.ahead is None else _least_bound(self.at, self.ahead)
        solver = None if self.ahead is None else self.ahead.solver
        return Rung(name, self.steps, epsilon, level, seconds, at_least, solver=solver)


def _climb(task: _Task) -> tuple[_Place | None, list[Rung]]:
    place: _Place | None = None
    rungs: list[Rung] = []
    for name in task.policy.climbed:
        if rungs and task.late():
            break
        since = time.perf_counter()
        task.report(name, 0.0)
        try:
            place = _WAYS[name](task, place)
        except NumericalFailure as error:
            rungs.append(Rung(name, 0, math.inf, "none", time.perf_counter() - since, failure=str(error)))
            continue
        rungs.append(place.rung(name, time.perf_counter() - since))
        if place.met(task):
            break
    return place, rungs


def _influence(task: _Task, _: _Place | None) -> _Place:
    processed = influence_step(task.family, task.before, task.data, task.forgotten, task.hessian)
    for _sweep in range(_SWEEPS if len(task.forgotten) > _LARGE_SHARE * len(task.data) else 0):
        processed = task.family.sweep(processed, task.retained)
    return _Place.reached(task, task.saw("influence", 1, task.family.expand(processed, task.retained)))


def _newton(task: _Task, start: _Place | None) -> _Place:
    place = start or _Place.reached(task, task.family.expand(task.before, task.retained))
    for step in range(_MAX_NEWTON_STEPS):
        if step > 0 and task.late():
            break
        task.report("newton", (step + 1) / (step + 2))
        try:
            at = newton_step(task.family, place.at, task.retained, None if place.ahead is None else place.ahead.x)
        except NumericalFailure:
            break  # so much was forgotten that the basin is gone: the certificate here says so
        place = _Place.reached(task, task.saw("newton", step + 1, at), step + 1)
        if place.met(task):
            break
    return replace(place, certificate=place.certificate or certify_expansion(task.family, place.at, task.retained))


def _warm(task: _Task, _: _Place | None) -> _Place:
    """From the trained posterior and not from where the rungs below have led: that may be out of every basin."""
    trained = train(task.family, task.retained, task.before)
    at = task.saw("warm", trained.iterations, task.family.expand(trained.posterior, task.retained))
    return _Place(at, None, certify_expansion(task.family, at, task.retained), trained.iterations)


def _retrain(task: _Task, _: _Place | None) -> _Place:
    trained = train(task.family, task.retained, task.family.initial(task.retained, _RETRAINING_SEED))
    at = task.saw("retrain", trained.iterations, task.family.expand(trained.posterior, task.retained))
    return _Place(at, None, certify_retrained(task.family, at, task.retained), trained.iterations)


_WAYS: dict[RungName, Callable[[_Task, _Place | None], _Place]] = {
    "influence": _influence,
    "newton": _newton,
    "warm": _warm,
    "retrain": _retrain,
}


def _least_bound(at: Expansion, ahead: Solution) -> float:
    """No certificate here can be below it, so one that must miss the policy need not be computed.

    A bound is a supremum over a box around the Newton point: at least the divergence to that point, and so at least the
    part of it that the means make, ½|Δμ/σ'|².
    """
    mean_step, std_step = ahead.x.chunk(2)
    apart = mean_step / (at.posterior.std.flatten() - std_step)
    return 0.5 * float(apart.dot(apart))


def _silent(_phase: str, _fraction: float) -> None:
    pass
