"""People forgotten one after another from one sample set, by weights alone, with a refresh whenever its draws are worn.

Each deletion takes the ladder's rung reweight, as the service does. Its certificate is about all deletions since the
draws were made. Below the floor the chains continue on the retained rows, as an idle worker would have them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import ml
from ml.certify.importance import relative_ess
from ml.inference.chains import SAFE_HMC, sample
from ml.inference.network_chains import sample_network
from ml.inference.refreshing import begin_refresh, continue_refresh
from ml.models import Model
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from vocabulary.levels import Level
from vocabulary.references import Reference

OnPerson = Callable[[str, float], None]


@dataclass(frozen=True)
class Step:
    """A person forgotten: the share of effective draws and the bound afterwards, and what they took.

    `epsilon` is None where nothing was certified. `refresh_seconds` is that of the refresh that followed, if one did;
    `ready` says whether its draws allow the certificates that the first ones did.
    """

    person: int
    share: float
    k_hat: float
    epsilon: float | None
    seconds: float
    refresh_seconds: float | None = None
    ready: bool | None = None


@dataclass(frozen=True)
class Sequence:
    """Steps of one run, and its settings."""

    family: str
    rows: int
    parameters: int
    draws: int
    reference: Reference
    floor: float
    sampling_seconds: float | None
    steps: tuple[Step, ...]

    @property
    def summary(self) -> dict[str, object]:
        refreshed = [step.refresh_seconds for step in self.steps if step.refresh_seconds is not None]
        certified = [step.epsilon for step in self.steps if step.epsilon is not None]
        return {
            **{name: value for name, value in asdict(self).items() if name != "steps"},
            "people": len(self.steps),
            "certified": len(certified),
            "refreshes": len(refreshed),
            "ready_after_refresh": sum(step.ready is True for step in self.steps),
            "least_share": min(step.share for step in self.steps),
            "largest_epsilon": max(certified, default=None),
            "seconds_a_person": sum(step.seconds for step in self.steps) / len(self.steps),
            "refresh_seconds": sum(refreshed) / len(refreshed) if refreshed else None,
        }


def draw_anew(model: Model, rows: Tensor, seed: int) -> SampleSet:
    """Sample the model's posterior from scratch."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, Network):
        return sample_network(model, rows, generator).sample_set
    start = torch.zeros(model.parameter_count, dtype=torch.float64)
    return sample(model, rows, start, SAFE_HMC, generator).sample_set


def forget_in_sequence(
    model: Model,
    posterior: SampleSet,
    rows: Tensor,
    people: int,
    floor: float,
    policy: ml.Policy,
    seed: int,
    on_person: OnPerson | None = None,
) -> tuple[Step, ...]:
    """Forget random rows one at a time. `floor` is the share of draws below which the chains continue."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()[:people]
    remaining, steps = list(range(len(rows))), []
    allowed = set(ml.readiness(model, posterior, rows).levels)
    for number, row in enumerate(order, 1):
        posterior, step = _forget(model, posterior, rows[remaining], remaining.index(row), policy, number)
        remaining.remove(row)
        if step.share < floor:
            posterior, step = _refresh(model, posterior, rows[remaining], step, allowed, seed + number)
        steps.append(step)
        if on_person is not None:
            on_person(f"{number} people", number / people)
    return tuple(steps)


def _forget(
    model: Model, before: SampleSet, rows: Tensor, position: int, policy: ml.Policy, number: int
) -> tuple[SampleSet, Step]:
    started = time.process_time()
    outcome = ml.forget(model, before, rows, torch.tensor([position]), policy)
    seconds = time.process_time() - started
    epsilon = outcome.certificate.epsilon if outcome.policy_met else None
    share = relative_ess(outcome.posterior.log_weights)
    return outcome.posterior, Step(number, share, outcome.certificate.constants.k_hat, epsilon, seconds)


def _refresh(
    model: Model, worn: SampleSet, rows: Tensor, step: Step, allowed: set[Level], seed: int
) -> tuple[SampleSet, Step]:
    started, generator = time.process_time(), torch.Generator().manual_seed(seed)
    (last,) = deque(continue_refresh(model, worn, rows, begin_refresh(worn, generator), generator), maxlen=1)
    seconds = time.process_time() - started
    ready = allowed <= set(ml.readiness(model, last.sample_set, rows).levels)
    return last.sample_set, Step(**{**asdict(step), "refresh_seconds": seconds, "ready": ready})
