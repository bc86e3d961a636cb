"""The ladder for sample sets: rung by rung, from a first-order map to sampling anew, until a model's policy is met.

    influence   the affine map to first order in the group, by products with Hessians alone
    newton      the affine map between the Laplace fits, modes and widths taken all the way
    retrain     chains on what is retained, from the mode there: the reference itself, as far as chains are

There is no warm restart between them: chains that go on from moved samples and forget where they came from are new
chains, and those that do not are not certified by weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.readiness import diagnose_samples
from ml.certify.weights import certify_resampled, certify_samples
from ml.curvature import Potential
from ml.errors import NumericalFailure
from ml.groups import retained_of_sampled
from ml.inference.chains import SAFE_SGLD, sample
from ml.inference.diagnostics import Diagnostics
from ml.ladder import OnProgress, OnStep, Rung, Step
from ml.models.likelihood import Likelihood
from ml.policy import Policy, RungName
from ml.sample_forgetting import Moved, affine_map, affine_map_matrix_free
from ml.sample_set import SampleSet

_SEED = 0


@dataclass(frozen=True, eq=False)
class SampleOutcome:
    """What the last rung reached. Publish it only if `policy_met`."""

    posterior: SampleSet
    certificate: Certificate
    rungs: tuple[Rung, ...]
    policy_met: bool
    seconds: float


def forget_sample_set(
    likelihood: Likelihood,
    sample_set: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
) -> SampleOutcome:
    """Carry stored samples to the posterior without the rows at positions `forgotten`, until `policy` is met.

    A policy that demands "proved" leaves nothing but sampling anew: weights only estimate. `on_step` is told after each
    rung, with the gradient at the mean of its samples: zero where that is the mode. What the error of a mean of so many
    draws leaves of it, and the skewness of the posterior, no rung takes away.
    """
    started = time.perf_counter()
    retained = retained_of_sampled(likelihood, sample_set.samples, data, forgotten)
    report = on_progress or _silent
    report("diagnostics", 0.0)
    task = _Task(likelihood, sample_set, data, forgotten, retained, diagnose_samples(likelihood, sample_set, data))
    reached: tuple[SampleSet, Certificate] | None = None
    rungs: list[Rung] = []
    for name in (rung for rung in _worth_trying(policy) if rung in _WAYS):
        since = time.perf_counter()
        if rungs and policy.seconds is not None and since - started > policy.seconds:
            break
        report(name, 0.0)
        try:
            reached = _WAYS[name](task)
        except NumericalFailure as error:
            rungs.append(Rung(name, 0, math.inf, "none", time.perf_counter() - since, failure=str(error)))
            continue
        certificate = reached[1]
        seconds = time.perf_counter() - since
        rungs.append(Rung(name, 1, certificate.epsilon, certificate.level, seconds, solver=_SOLVERS[name]))
        if on_step is not None:
            on_step(Step(name, 1, task.residual(reached[0]), time.perf_counter() - started))
        if policy.met_by(certificate):
            break
    if reached is None:
        raise NumericalFailure(
            "; ".join(f"{rung.name}: {rung.failure}" for rung in rungs)
            or "the policy allows no rung that a sample set has: allow influence, newton or retrain"
        )
    report("done", 1.0)
    met = policy.met_by(reached[1])
    return SampleOutcome(*reached, tuple(rungs), met, time.perf_counter() - started)


@dataclass(frozen=True, eq=False)
class _Task:
    likelihood: Likelihood
    before: SampleSet
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    diagnostics: Diagnostics

    def residual(self, reached: SampleSet) -> float:
        """One pass over what is retained, where the weights of a certificate take one for each sample."""
        return float(Potential(self.likelihood, self.retained).gradient(reached.mean).norm())


def _worth_trying(policy: Policy) -> tuple[RungName, ...]:
    return policy.climbed if policy.level == "estimated" else tuple(name for name in policy.rungs if name == "retrain")


def _moved_by(
    move: Callable[[Likelihood, Tensor, Tensor, Tensor], Moved], task: _Task
) -> tuple[SampleSet, Certificate]:
    moved = move(task.likelihood, task.before.samples, task.data, task.forgotten)
    certificate = certify_samples(
        task.likelihood, task.before, moved, task.data, task.forgotten, task.diagnostics, _SEED
    )
    return SampleSet(moved.samples, task.before.chain), certificate


def _influence(task: _Task) -> tuple[SampleSet, Certificate]:
    return _moved_by(affine_map_matrix_free, task)


def _newton(task: _Task) -> tuple[SampleSet, Certificate]:
    return _moved_by(affine_map, task)


def _retrain(task: _Task) -> tuple[SampleSet, Certificate]:
    """Our safe chains, from the mode that Newton's method finds from the samples' mean: that tells the basin only."""
    drawn = sample(task.likelihood, task.retained, task.before.mean, SAFE_SGLD, torch.Generator().manual_seed(_SEED))
    return drawn.sample_set, certify_resampled(drawn, len(task.retained))


_WAYS: dict[RungName, Callable[[_Task], tuple[SampleSet, Certificate]]] = {
    "influence": _influence,
    "newton": _newton,
    "retrain": _retrain,
}
_SOLVERS: dict[RungName, str | None] = {"influence": "conjugate gradients", "newton": "cholesky", "retrain": None}


def _silent(_phase: str, _fraction: float) -> None:
    pass
