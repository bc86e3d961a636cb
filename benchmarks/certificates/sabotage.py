"""Nonsense sets of a tiny network and of a logistic regression: none may be certified.

    worthless       copies of one point, with and without a little noise, five points repeated, chains that never
                    mixed: refused against the posterior and against the law of the stored draws
    not posterior   draws of another model, twice as wide, half as wide, a set that memorised the forgotten rows:
                    refused against the posterior. They have a law of their own: a policy may ask for that one.

Each trial spoils another set of right draws and forgets two rows, under a policy whose epsilon is met by anything that
is certified at all. The right draws are judged as well: checks that refuse everything would pass otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import ml
from benchmarks.certificates.coverage import draw_regression, sample_posterior
from benchmarks.certificates.coverage_any import NETWORK, draw_network_rows, split_chains
from benchmarks.certificates.network_truth import draw_particles, run_chains
from ml.errors import ForgettingError
from ml.posteriors.sample_set import SampleSet
from vocabulary.references import REFERENCES, Reference

OnProgress = Callable[[str, float], None]

RIGHT = "right draws"
_ROWS = 60
_FORGOTTEN = torch.arange(2)
_COPIES = 20
_CHAINS, _DRAWS_PER_CHAIN, _THINNING = 4, 250, 2
_LARGE_EPSILON = 1e3


@dataclass(frozen=True, eq=False)
class Draws:
    """Right draws of a model, draws of other rows, and draws of rows of which the forgotten ones count many times."""

    model: ml.Model
    rows: Tensor
    right: SampleSet
    of_other_rows: SampleSet
    memorising: SampleSet


Spoil = Callable[[Draws, torch.Generator], SampleSet]


@dataclass(frozen=True)
class Plan:
    """Number of nonsense sets in all, and of a network's data sets, which several of them share."""

    sets: int = 500
    data_sets: int = 4
    particles: int = 400
    seed: int = 5


QUICK = Plan(sets=36, data_sets=1, particles=200)


@dataclass(frozen=True)
class SabotageTrial:
    """A nonsense set of a kind, and the reference that its certificate was asked for."""

    model: str
    kind: str
    reference: Reference
    certified: bool


def bench_sabotage(plan: Plan, on_progress: OnProgress) -> dict[str, Any]:
    """Return how many of the sets were certified: in all, and by kind and reference."""
    trials = list(_run_trials(plan, on_progress))
    certified = [trial for trial in trials if trial.certified]
    kinds = Counter((trial.kind, trial.reference) for trial in trials)
    failures = Counter((trial.kind, trial.reference) for trial in certified)
    return {
        "sets": sum(trial.reference == "posterior" for trial in trials if trial.kind != RIGHT),
        "certified": sum(trial.kind != RIGHT for trial in certified),
        "right_sets": kinds[RIGHT, "posterior"],
        "right_certified": failures[RIGHT, "posterior"],
        "kinds": [
            {"kind": kind, "reference": reference, "asked": count, "certified": failures[kind, reference]}
            for (kind, reference), count in sorted(kinds.items())
            if kind != RIGHT
        ],
        "seed": plan.seed,
    }


def _run_trials(plan: Plan, on_progress: OnProgress) -> Iterator[SabotageTrial]:
    kinds = [*WORTHLESS, *NOT_POSTERIOR]
    rounds = -(-plan.sets // (2 * len(kinds)))
    networks = _network_draws(plan, rounds)
    for number in range(rounds):
        on_progress("nonsense sets", number / rounds)
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + number)
        for name, draws in (("network", next(networks)), ("logistic", _regression_draws(generator))):
            yield SabotageTrial(name, RIGHT, "posterior", _is_certified(draws, draws.right, "posterior"))
            for kind in kinds:
                yield from _judge(name, kind, draws, generator)


def _judge(name: str, kind: str, draws: Draws, generator: torch.Generator) -> Iterator[SabotageTrial]:
    worthless = kind in WORTHLESS
    spoiled = (WORTHLESS if worthless else NOT_POSTERIOR)[kind](draws, generator)
    for reference in REFERENCES if worthless else ("posterior",):
        yield SabotageTrial(name, kind, reference, _is_certified(draws, spoiled, reference))


def _is_certified(draws: Draws, spoiled: SampleSet, reference: Reference) -> bool:
    policy = ml.Policy(_LARGE_EPSILON, "estimated", ("influence", "reweight"), reference=reference)
    try:
        return ml.forget(draws.model, spoiled, draws.rows, _FORGOTTEN, policy).certificate.level != "none"
    except ForgettingError:
        return False


def _network_draws(plan: Plan, rounds: int) -> Iterator[Draws]:
    """Yield draws that share data sets: chains of all rounds of a data set run side by side."""
    each = -(-rounds // plan.data_sets)
    for number in range(plan.data_sets):
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + 500 + number)
        rows, others = draw_network_rows(_ROWS, generator), draw_network_rows(_ROWS, generator)
        targets = (rows, others, _memorised(rows))
        sets = [split_chains(_run_network(target, each, plan.particles, generator), _CHAINS) for target in targets]
        for right, of_other_rows, memorising in zip(*sets, strict=True):
            yield Draws(NETWORK, rows, right, of_other_rows, memorising)


def _run_network(rows: Tensor, sets: int, particles: int, generator: torch.Generator) -> SampleSet:
    starts, step = draw_particles(NETWORK, rows, max(particles, _CHAINS * sets), generator)
    return run_chains(NETWORK, rows, starts[: _CHAINS * sets], _DRAWS_PER_CHAIN, _THINNING, step, generator)


def _regression_draws(generator: torch.Generator) -> Draws:
    (model, rows), (_, others) = (draw_regression("logistic", generator, dimensions=3) for _ in range(2))
    right, of_other_rows, memorising = (
        sample_posterior(model, target, generator) for target in (rows, others, _memorised(rows))
    )
    return Draws(model, rows, right, of_other_rows, memorising)


def _memorised(rows: Tensor) -> Tensor:
    return torch.cat([rows, *[rows[_FORGOTTEN]] * _COPIES])


def _scaled(ratio: float) -> Spoil:
    def spoil(draws: Draws, _: torch.Generator) -> SampleSet:
        mean = draws.right.mean
        return replace(draws.right, samples=mean + ratio * (draws.right.samples - mean))

    return spoil


def _copies(jitter: float) -> Spoil:
    def spoil(draws: Draws, generator: torch.Generator) -> SampleSet:
        samples = draws.right.samples
        point = samples[int(torch.randint(len(samples), (), generator=generator))]
        return replace(draws.right, samples=point + jitter * (samples - draws.right.mean))

    return spoil


def _few_points(draws: Draws, generator: torch.Generator) -> SampleSet:
    chosen = torch.randint(5, (len(draws.right.samples),), generator=generator)
    return replace(draws.right, samples=draws.right.samples[chosen])


def _never_mixed(draws: Draws, generator: torch.Generator) -> SampleSet:
    """Keep each chain, of a quarter of the width, around a draw of its own."""
    right = draws.right
    chosen = torch.randint(len(right.samples), (int(right.chain.max()) + 1,), generator=generator)
    centres = right.samples[chosen][right.chain]
    return replace(right, samples=centres + 0.25 * (right.samples - right.mean))


WORTHLESS: dict[str, Spoil] = {
    "copies of one point": _copies(0.0),
    "nearly copies of one point": _copies(1e-3),
    "five points repeated": _few_points,
    "chains that never mixed": _never_mixed,
}
NOT_POSTERIOR: dict[str, Spoil] = {
    "draws of another model": lambda draws, _: draws.of_other_rows,
    "twice as wide": _scaled(2.0),
    "half as wide": _scaled(0.5),
    "rows memorised": lambda draws, _: draws.memorising,
}
