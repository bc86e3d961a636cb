"""The rung loop that all ladders share: try rungs, from the cheapest to retraining, until a policy is met.

A rung that fails is recorded and costs only time: the loop continues with the next one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor

from ml.certify.certificate import Certificate
from ml.errors import NumericalFailure
from ml.ladder.policy import Policy
from vocabulary.levels import LEVELS, Level, is_at_least
from vocabulary.rungs import RungName

Posterior = TypeVar("Posterior")
OnProgress = Callable[[str, float], None]
"""Called with a phase and the fraction of it that is done."""


@dataclass(frozen=True)
class Step:
    """Residual after a step: zero at the reference. `seconds` count from the start.

    Training is one step: a warm restart and retraining report their last iteration only.
    """

    rung: RungName
    step: int
    residual: float
    seconds: float


OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class RungRecord:
    """Record of a rung that was tried, with the bound it reached.

    The bound is infinite, at level "none", if none holds, or if none could meet the policy and it was not computed; it
    would have been `at_least` this large. `failure` says why a rung reached nothing.
    """

    name: RungName
    steps: int
    epsilon: float
    level: Level
    seconds: float
    at_least: float = 0.0
    failure: str | None = None
    solver: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values; an infinite bound, which JSON lacks, becomes None."""
        return {name: None if value == math.inf else value for name, value in asdict(self).items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate(Generic[Posterior]):
    """Posterior that a rung reached. `certificate` is None if none could meet the policy: `at_least` exceeds it.

    `failure` says why nothing could be certified there.
    """

    posterior: Posterior
    certificate: Certificate | None
    steps: int = 1
    solver: str | None = None
    at_least: float = 0.0
    failure: str | None = None

    def meets(self, policy: Policy) -> bool:
        return self.certificate is not None and policy.met_by(self.certificate)


@dataclass(frozen=True, eq=False)
class Outcome(Generic[Posterior]):
    """Result of forgetting: what the last rung reached. Publish it only if `policy_met`.

    `hessian` is ∇²F at the new posterior over the retained rows, from ladders that compute it.
    """

    posterior: Posterior
    certificate: Certificate
    rungs: tuple[RungRecord, ...]
    policy_met: bool
    seconds: float
    hessian: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Progress:
    """Clock and callbacks of one call of `forget`."""

    budget: float | None
    on_progress: OnProgress | None = None
    on_step: OnStep | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def over_budget(self) -> bool:
        return self.budget is not None and self.seconds > self.budget

    def report(self, phase: str, fraction: float) -> None:
        if self.on_progress is not None:
            self.on_progress(phase, fraction)

    def step(self, rung: RungName, step: int, residual: float) -> None:
        if self.on_step is not None:
            self.on_step(Step(rung, step, residual, self.seconds))


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate[Any])
Rung = Callable[[AnyCandidate | None], AnyCandidate]
"""Takes the candidate of the rungs below, if any of them reached one."""


def climb(
    rungs: Mapping[RungName, Rung[AnyCandidate]], policy: Policy, progress: Progress, strongest: Level
) -> tuple[AnyCandidate, tuple[RungRecord, ...]]:
    """Try the rungs that the policy allows until one meets it. Return the last candidate and a record of each rung.

    `strongest` is the best level of a rung other than retraining: a policy that requires more leaves only retraining.
    """
    names = _worth_trying(rungs, policy, strongest)
    candidate: AnyCandidate | None = None
    records: list[RungRecord] = []
    for name in names:
        if records and progress.over_budget:
            break
        started = time.perf_counter()
        progress.report(name, 0.0)
        try:
            candidate = rungs[name](candidate)
        except NumericalFailure as error:
            records.append(RungRecord(name, 0, math.inf, "none", time.perf_counter() - started, failure=str(error)))
            continue
        records.append(_record(name, candidate, time.perf_counter() - started))
        if candidate.meets(policy):
            break
    if candidate is None:
        raise NumericalFailure(_list_failures(records))
    return candidate, tuple(records)


def conclude(
    candidate: Candidate[Posterior],
    records: tuple[RungRecord, ...],
    policy: Policy,
    progress: Progress,
    hessian: Tensor | None = None,
) -> Outcome[Posterior]:
    """Return the outcome of a climb that ended at this candidate, which must have a certificate."""
    certificate = candidate.certificate
    if certificate is None:
        raise ValueError("the last candidate has no certificate: certify it first")
    progress.report("done", 1.0)
    met = policy.met_by(certificate)
    return Outcome(candidate.posterior, certificate, records, met, progress.seconds, hessian)


def _worth_trying(rungs: Mapping[RungName, Rung[AnyCandidate]], policy: Policy, strongest: Level) -> list[RungName]:
    """Return the rungs that can meet the policy, at least one."""
    allowed = [name for name in policy.rungs if name in rungs]
    if not allowed:
        *others, last = rungs
        raise NumericalFailure(f"the policy allows no rung of this ladder: allow {', '.join(others)} or {last}")
    if is_at_least(strongest, policy.level):
        return allowed
    if "retrain" not in allowed:
        raise NumericalFailure(
            f"the policy requires the level {policy.level!r}, but posteriors of this kind reach {strongest!r} at most "
            f"without retraining: allow the rung retrain, or require the level {strongest!r}"
        )
    return ["retrain"]


def _list_failures(records: Sequence[RungRecord]) -> str:
    """List the failures, each once, with the names of the rungs that had it."""
    names: dict[str | None, list[str]] = {}
    for record in records:
        names.setdefault(record.failure, []).append(record.name)
    return "; ".join(f"{', '.join(rungs)}: {failure}" for failure, rungs in names.items())


def _record(name: RungName, candidate: Candidate[Any], seconds: float) -> RungRecord:
    certificate, epsilon, level = candidate.certificate, math.inf, LEVELS[0]
    if certificate is not None:
        epsilon, level = certificate.epsilon, certificate.level
    return RungRecord(
        name, candidate.steps, epsilon, level, seconds, candidate.at_least, candidate.failure, candidate.solver
    )
