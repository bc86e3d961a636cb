"""Are certificates true? Random deletions, each bound beside the divergence that a converged retraining measures.

    ratio = ε / KL(processed ‖ retrained)         a violation: KL above ε, or the reverse KL above the reverse ε

The truth is trained on what is retained until nothing but rounding moves it: from scratch where the energy is convex,
and for a mixture from the processed posterior, because the certificate speaks of that basin. Rounding is then all that
it is off by, less than 1e-26 nats from wherever it started. Violations are counted without any allowance for that:
certificates pay for rounding. Ratios are counted from LEAST_KL on, below which digits of the truth would be missing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from benchmarks.certificates.certify_scenes import CASES, KINDS, LARGEST_SHARE, Kind, Model, Scene, choose, scene
from benchmarks.timing import timed
from ml.errors import InvalidInput
from ml.forgetting.groups import retained_rows
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from vocabulary.levels import Level
from vocabulary.rungs import RUNGS, RungName

FAMILIES = tuple(CASES)
LEAST_KL = 1e-20
EPSILON = 1e-3
"""Of the policy by default: most deletions meet it by the influence step, where a bound has the most to prove."""

_SCENES = 4
_TRIALS_OF_SCENE = 25  # fewer, and another model is not worth its training
_LEAST_OF_CHAIN = 0.6  # repeated deletions begin anew once they have left no more of the rows
_SMALL_SHARE = 0.01

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Trial:
    """One deletion. `published` is whether the policy was met: what misses it never replaces a model."""

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
        """Whether a bound is claimed: a retrained model has 0 by construction, and at level none there is nothing."""
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
    """`ratios` is how many trials have one; medians are None where none has. `epsilon` is the policy's."""

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
    """Of deletions of at most 1 % of the rows."""
    median_ratio_5pct: float | None
    """Of deletions of more than 1 % and at most 5 %."""
    published_above_policy: int
    unpublished: int
    without_retraining: float
    """The share of trials that met the policy below the rung that trains from scratch."""
    rungs: dict[str, int]
    seconds: float


def run(
    family: str, trials: int, seed: int, epsilon: float = EPSILON, on_progress: OnProgress | None = None
) -> tuple[Report, list[Trial]]:
    """That many deletions, the kinds in turn, from a few models of the family."""
    if family not in CASES:
        raise InvalidInput(f"unknown family {family!r}: choose among {', '.join(CASES)}")
    if trials < 1:
        raise InvalidInput(f"{trials} trials show nothing: ask for at least one")
    policy, report = Policy(epsilon), on_progress or _silent
    seconds, found = timed(lambda: _trials(family, trials, seed, policy, report))
    return summarise(family, found, seed, epsilon, seconds), found


def summarise(family: str, found: Sequence[Trial], seed: int, epsilon: float, seconds: float) -> Report:
    ratios = [(trial.share, trial.ratio) for trial in found if trial.ratio is not None]
    everything = [ratio for _, ratio in ratios]
    issued, rungs = Counter(trial.level for trial in found), Counter(trial.rung for trial in found)
    return Report(
        family=family,
        trials=len(found),
        violations=sum(trial.violated for trial in found),
        median_ratio=_median(everything),
        p95_ratio=_p95(everything),
        issued={level: issued[level] for level in get_args(Level)},
        seed=seed,
        epsilon=epsilon,
        ratios=len(ratios),
        median_ratio_1pct=_median([ratio for share, ratio in ratios if share <= _SMALL_SHARE]),
        median_ratio_5pct=_median([ratio for share, ratio in ratios if _SMALL_SHARE < share <= LARGEST_SHARE]),
        published_above_policy=sum(trial.published and max(trial.epsilon, trial.kl) > epsilon for trial in found),
        unpublished=sum(not trial.published for trial in found),
        without_retraining=sum(trial.published and trial.rung != "retrain" for trial in found) / len(found),
        rungs={rung: rungs[rung] for rung in RUNGS},
        seconds=seconds,
    )


def _trials(family: str, trials: int, seed: int, policy: Policy, report: OnProgress) -> list[Trial]:
    report("training", 0.0)
    scenes = [scene(family, seed * _SCENES + i) for i in range(min(_SCENES, 1 + trials // _TRIALS_OF_SCENE))]
    chains = [one.model for one in scenes]
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(trials):
        report(f"deletion {number + 1} of {trials}", number / trials)
        kind, place = KINDS[number % len(KINDS)], number // len(KINDS) % len(scenes)
        whole = scenes[place].model
        trial, after = _trial(kind, scenes[place], chains[place] if kind == "repeated" else whole, policy, generator)
        found.append(trial)
        if kind == "repeated":
            chains[place] = after if len(after.data) > _LEAST_OF_CHAIN * len(whole.data) else whole
    report("done", 1.0)
    return found


def _trial(kind: Kind, scene: Scene, model: Model, policy: Policy, generator: torch.Generator) -> tuple[Trial, Model]:
    """And the model that is current after it."""
    forgotten = choose(kind, scene, model, generator)
    outcome = forget(scene.family, model.posterior, model.data, forgotten, policy, hessian=model.hessian)
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
    """The smallest value that 95 % do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def _silent(_stage: str, _fraction: float) -> None:
    pass
