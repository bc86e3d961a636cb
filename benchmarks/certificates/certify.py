"""Validity of certificates: random deletions, with each bound compared to the KL to a converged retraining.

    ratio = ε / KL(processed ‖ retrained)         a violation: KL above ε, or the reverse KL above the reverse ε

The truth is trained on the retained rows until only rounding moves it: from scratch if the energy is convex, and for a
mixture from the processed posterior, because the certificate is about that basin. Its error is then rounding, less than
1e-26 nats from any start. Violations are counted without an allowance for it, because certificates include rounding.
Ratios are reported for KL of at least LEAST_KL; below that, the truth lacks digits.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from benchmarks.certificates.certify_scenes import CASES, KINDS, LARGEST_SHARE, Kind, Model, Scene, choose, make_scene
from benchmarks.timing import timed
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from vocabulary.levels import Level
from vocabulary.rungs import RUNGS, RungName

FAMILIES = tuple(CASES)
LEAST_KL = 1e-20
EPSILON = 1e-3
"""Default policy. Most deletions meet it with the influence step, which is the hardest case for a bound."""

_SCENES = 4
_TRIALS_OF_SCENE = 25  # with fewer trials, training another model does not pay
_LEAST_REMAINING = 0.6  # repeated deletions restart once fewer rows than this share are left
_SMALL_SHARE = 0.01

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Trial:
    """One deletion. `published` says whether the policy was met; otherwise the model stays as it was."""

    kind: Kind
    removed: int
    n: int
    rung: RungName
    level: Level
    epsilon: float
    epsilon_reverse: float
    kl: float
    kl_reverse: float
    published: bool

    @property
    def bounded(self) -> bool:
        """Whether the certificate states a bound: not at level none, and a retrained model has 0 by construction."""
        return self.level in ("proved", "estimated")

    @property
    def violated(self) -> bool:
        return self.bounded and (self.kl > self.epsilon or self.kl_reverse > self.epsilon_reverse)

    @property
    def ratio(self) -> float | None:
        return self.epsilon / self.kl if self.bounded and self.kl >= LEAST_KL else None

    @property
    def share(self) -> float:
        return self.removed / self.n


@dataclass(frozen=True)
class Report:
    """Summary of trials. `ratios` counts the trials with a ratio; medians are None without any."""

    family: str
    trials: int
    violations: int
    median_ratio: float | None
    p95_ratio: float | None
    issued: dict[str, int]
    seed: int
    epsilon: float
    ratios: int
    median_ratio_1pct: float | None
    """Median over deletions of at most 1 % of the rows."""
    median_ratio_5pct: float | None
    """Median over deletions of more than 1 % and at most 5 %."""
    published_above_policy: int
    unpublished: int
    without_retraining: float
    """Share of trials that met the policy without retraining."""
    rungs: dict[str, int]
    seconds: float


def run(
    family: str, trials: int, seed: int, epsilon: float = EPSILON, on_progress: OnProgress | None = None
) -> tuple[Report, list[Trial]]:
    """Run deletions from a few models of the family, alternating between the kinds."""
    if family not in CASES:
        raise InvalidInput(f"unknown family {family!r}: choose among {', '.join(CASES)}")
    if trials < 1:
        raise InvalidInput(f"trials is {trials}: pass at least 1")
    policy, report = Policy(epsilon), on_progress or _ignore_progress
    seconds, outcomes = timed(lambda: _run_trials(family, trials, seed, policy, report))
    return summarise(family, outcomes, seed, epsilon, seconds), outcomes


def summarise(family: str, trials: Sequence[Trial], seed: int, epsilon: float, seconds: float) -> Report:
    ratios = [(trial.share, trial.ratio) for trial in trials if trial.ratio is not None]
    all_ratios = [ratio for _, ratio in ratios]
    issued, rungs = Counter(trial.level for trial in trials), Counter(trial.rung for trial in trials)
    return Report(
        family=family,
        trials=len(trials),
        violations=sum(trial.violated for trial in trials),
        median_ratio=_median(all_ratios),
        p95_ratio=_p95(all_ratios),
        issued={level: issued[level] for level in get_args(Level)},
        seed=seed,
        epsilon=epsilon,
        ratios=len(ratios),
        median_ratio_1pct=_median([ratio for share, ratio in ratios if share <= _SMALL_SHARE]),
        median_ratio_5pct=_median([ratio for share, ratio in ratios if _SMALL_SHARE < share <= LARGEST_SHARE]),
        published_above_policy=sum(trial.published and max(trial.epsilon, trial.kl) > epsilon for trial in trials),
        unpublished=sum(not trial.published for trial in trials),
        without_retraining=sum(trial.published and trial.rung != "retrain" for trial in trials) / len(trials),
        rungs={rung: rungs[rung] for rung in RUNGS},
        seconds=seconds,
    )


def _run_trials(family: str, trials: int, seed: int, policy: Policy, report: OnProgress) -> list[Trial]:
    report("training", 0.0)
    scenes = [make_scene(family, seed * _SCENES + i) for i in range(min(_SCENES, 1 + trials // _TRIALS_OF_SCENE))]
    remaining = [scene.model for scene in scenes]  # what repeated deletions left of each model
    generator = torch.Generator().manual_seed(seed)
    outcomes = []
    for number in range(trials):
        report(f"deletion {number + 1} of {trials}", number / trials)
        kind, index = KINDS[number % len(KINDS)], number // len(KINDS) % len(scenes)
        scene, whole = scenes[index], scenes[index].model
        trial, after = _run_trial(kind, scene, remaining[index] if kind == "repeated" else whole, policy, generator)
        outcomes.append(trial)
        if kind == "repeated":
            remaining[index] = after if len(after.data) > _LEAST_REMAINING * len(whole.data) else whole
    report("done", 1.0)
    return outcomes


def _run_trial(
    kind: Kind, scene: Scene, model: Model, policy: Policy, generator: torch.Generator
) -> tuple[Trial, Model]:
    """Return the trial and the model that is current afterwards."""
    forgotten = choose(kind, scene, model, generator)
    outcome = forget(
        scene.family, model.posterior, model.data, forgotten, policy, hessian=model.hessian, examine_reference=False
    )
    retained = retained_rows(model.data, forgotten)
    processed, certificate = outcome.posterior, outcome.certificate
    start = scene.family.initial(retained, 0) if scene.convex else processed
    truth = train(scene.family, retained, start, tolerance=0.0).posterior
    trial = Trial(
        kind=kind,
        removed=len(forgotten),
        n=len(model.data),
        rung=outcome.rungs[-1].name,
        level=certificate.level,
        epsilon=certificate.epsilon,
        epsilon_reverse=certificate.epsilon_reverse,
        kl=processed.kl(truth),
        kl_reverse=truth.kl(processed),
        published=outcome.policy_met,
    )
    return trial, Model(retained, processed, outcome.hessian) if outcome.policy_met else model


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _p95(values: Sequence[float]) -> float | None:
    """Return the smallest value that 95 % do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def _ignore_progress(_stage: str, _fraction: float) -> None:
    pass
