"""Climbing where certificates can only estimate, which is so for sample sets and for networks.

Rung by rung, from the cheapest to retraining, until a model's policy is met. A rung that leads nowhere is told, costs
time only, and the next one is tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ml.certify.certificate import Certificate
from ml.errors import NumericalFailure
from ml.ladder.policy import Policy
from ml.ladder.variational import OnProgress, OnStep, Rung, Step
from vocabulary.rungs import RungName

Posterior = TypeVar("Posterior")


@dataclass(frozen=True, eq=False)
class Tried(Generic[Posterior]):
    """Where a rung has led. `residual` is what its `Step` tells."""

    posterior: Posterior
    certificate: Certificate
    residual: float
    steps: int = 1
    solver: str | None = None


@dataclass(frozen=True, eq=False)
class Climbed(Generic[Posterior]):
    """What the last rung reached. Publish it only if `policy_met`."""

    posterior: Posterior
    certificate: Certificate
    rungs: tuple[Rung, ...]
    policy_met: bool
    seconds: float


Way = Callable[[Tried[Posterior] | None], Tried[Posterior]]
"""A rung, given where the rungs below have led, if anywhere."""


def climb(
    ways: Mapping[RungName, Way[Posterior]],
    policy: Policy,
    started: float,
    on_progress: OnProgress,
    on_step: OnStep | None = None,
) -> Climbed[Posterior]:
    """Try the `ways` that the policy allows. One that demands "proved" leaves nothing but retraining."""
    names = [name for name in _worth_trying(policy) if name in ways]
    if not names:
        *others, last = ways
        raise NumericalFailure(f"the policy allows no rung that there is here: allow {', '.join(others)} or {last}")
    reached: Tried[Posterior] | None = None
    rungs: list[Rung] = []
    for name in names:
        since = time.perf_counter()
        if rungs and policy.seconds is not None and since - started > policy.seconds:
            break
        on_progress(name, 0.0)
        try:
            reached = ways[name](reached)
        except NumericalFailure as error:
            rungs.append(Rung(name, 0, math.inf, "none", time.perf_counter() - since, failure=str(error)))
            continue
        rungs.append(_told(name, reached, time.perf_counter() - since))
        if on_step is not None:
            on_step(Step(name, reached.steps, reached.residual, time.perf_counter() - started))
        if policy.met_by(reached.certificate):
            break
    if reached is None:
        raise NumericalFailure("; ".join(f"{rung.name}: {rung.failure}" for rung in rungs))
    on_progress("done", 1.0)
    met = policy.met_by(reached.certificate)
    return Climbed(reached.posterior, reached.certificate, tuple(rungs), met, time.perf_counter() - started)


def silent(_phase: str, _fraction: float) -> None:
    """For callers who do not ask how far the work is."""


def _worth_trying(policy: Policy) -> tuple[RungName, ...]:
    return policy.climbed if policy.level == "estimated" else tuple(name for name in policy.rungs if name == "retrain")


def _told(name: RungName, tried: Tried[Posterior], seconds: float) -> Rung:
    certificate = tried.certificate
    return Rung(name, tried.steps, certificate.epsilon, certificate.level, seconds, solver=tried.solver)
