"""Judgement of sample-set certificates: intervals after 1, 10 and 50 deletions, against true divergences.

Draws come from the posterior itself, so nothing but the deletions and the estimate is judged. A certificate speaks of
the draws as they are, or of draws picked by their weights. For the latter the truth is `picked_divergence`, with the
number of effective draws of the known autocorrelation. The looser bound log(1 + χ²/N), from which certificates are
computed, is compared too, with the true χ²: `below_chi_square_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import ml
from benchmarks.certificates.audit.deletions import WITHOUT_RETRAINING
from benchmarks.certificates.audit.extended import Array
from benchmarks.certificates.audit.sample_truth import Regression, divergences, fit_map, picked_divergence, sample
from ml.errors import NumericalFailure

OnProgress = Callable[[str, float], None]

CHECKPOINTS = (1, 10, 50)
# An odd number, so that linear and logistic regressions take turns at each length.
_LENGTHS = (1, 10, 1, 10, 50, 1, 10, 1, 10)
_POLICIES = (0.03, 0.1, 0.3)
_CORRELATIONS = (0.0, 1 / 3, 1 / 2)
_CHAINS, _DRAWS = 4, 500
_FEWEST_ROWS, _MOST_ROWS = 120, 250
_MANY_PARAMETERS = 10
_ACCURACY = 1e-10
"""Of the truth, in nats: quadrature, and the map as recovered from the draws."""


@dataclass(frozen=True)
class SampleTrial:
    """Certificate after `length` deletions. `low` to `high` is its interval; epsilon also covers what no check sees."""

    family: str
    parameters: int
    length: int
    removed: int
    policy: float
    level: str
    met: bool
    reading: str
    low: float
    high: float
    epsilon: float
    truth: float
    chi_square_bound: float  # log(1 + χ²/N); for draws as they are the same as the truth

    @property
    def issued(self) -> bool:
        return self.level == "estimated"

    @property
    def covered(self) -> bool:
        return self.low - _ACCURACY <= self.truth <= self.high + _ACCURACY

    @property
    def below_truth(self) -> bool:
        return self.issued and self.truth > self.epsilon + _ACCURACY

    @property
    def below_chi_square_bound(self) -> bool:
        return self.issued and self.chi_square_bound > self.epsilon + _ACCURACY

    @property
    def published_above_policy(self) -> bool:
        return self.issued and self.met and self.truth > self.policy


@dataclass(frozen=True, eq=False)
class SampleScene:
    """Draws of a known posterior, as registered."""

    posterior: Regression
    model: ml.Family
    samples: ml.SampleSet
    effective: float  # independent draws that the set is worth

    @property
    def family(self) -> str:
        return "linear" if self.posterior.gaussian else "logistic"


def audit_sequences(count: int, seed: int, on_progress: OnProgress) -> list[SampleTrial]:
    """Judge the certificates at checkpoints of `count` sequences."""
    trials: list[SampleTrial] = []
    for index in range(count):
        on_progress(f"sequence {index + 1} of {count}", index / count)
        trials += judge_sequence(index, np.random.default_rng([seed, 1, index]))
    return trials


def judge_sequence(index: int, rng: np.random.Generator) -> list[SampleTrial]:
    length, policy = _LENGTHS[index % len(_LENGTHS)], float(rng.choice(_POLICIES))
    scene = draw_scene(index, rng)
    retained, samples, trials = scene.posterior, scene.samples, []
    for step in range(1, length + 1):
        forgotten = _choose_rows(len(retained.rows), length, rng)
        try:
            outcome = forget_draws(scene.model, samples, retained.rows, forgotten, policy)
        except NumericalFailure:
            break
        retained, samples = retained.without(forgotten), outcome.posterior
        if step in CHECKPOINTS or not outcome.policy_met:
            trials.append(_judge(scene, retained, outcome, step, policy))
        if not outcome.policy_met:
            break
    return trials


def draw_scene(index: int, rng: np.random.Generator) -> SampleScene:
    """Draw a regression with draws: linear and logistic in turn, a linear one in five with 10 parameters."""
    logistic = index % 2 == 1
    p = _MANY_PARAMETERS if not logistic and rng.random() < 0.2 else int(rng.integers(2, 4))
    posterior = draw_regression(int(rng.integers(_FEWEST_ROWS, _MOST_ROWS)), p, logistic, rng)
    correlation = float(rng.choice(_CORRELATIONS))
    draws = sample(posterior, _CHAINS, _DRAWS, correlation, rng)
    if logistic:  # Metropolis chains also repeat a draw where they refuse a proposal
        correlation = float((draws[:, 1:] == draws[:, :-1]).all(2).mean())
    effective = _CHAINS * _DRAWS * (1 - correlation) / (1 + correlation)
    return SampleScene(posterior, build_model(posterior), sample_set(draws), effective)


def draw_regression(
    n: int, p: int, logistic: bool, rng: np.random.Generator, prior_std: float = 1.0, mixing: float = 0.4
) -> Regression:
    """Draw rows with correlated features and targets of random weights."""
    features = rng.normal(size=(n, p)) @ (np.eye(p) + mixing * rng.normal(size=(p, p)))
    signal = features @ rng.normal(size=p) / math.sqrt(p / 2)
    threshold = rng.logistic(size=n) if logistic else rng.normal(size=n)
    target = (signal > threshold).astype(float) if logistic else signal + threshold
    return Regression(np.column_stack([features, target]), prior_std, None if logistic else 1.0)


def build_model(posterior: Regression) -> ml.Family:
    """Return the model under judgement whose posterior this is."""
    config: dict[str, object] = {"dimensions": posterior.parameters, "prior_std": posterior.prior_std}
    if posterior.noise_std is None:
        return ml.build_family("logistic-regression", config)
    return ml.build_family("linear-regression", {**config, "noise_std": posterior.noise_std})


def sample_set(draws: Array) -> ml.SampleSet:
    chains, length, p = draws.shape
    chain = torch.arange(chains).repeat_interleave(length)
    return ml.SampleSet(torch.from_numpy(np.ascontiguousarray(draws.reshape(-1, p))), chain)


def forget_draws(
    model: ml.Family, samples: ml.SampleSet, rows: Array, forgotten: Array, policy: float
) -> ml.Outcome[ml.SampleSet]:
    allowed = ml.Policy(policy, level="estimated", rungs=WITHOUT_RETRAINING)
    return ml.forget(model, samples, torch.from_numpy(rows), torch.from_numpy(forgotten), allowed)


def _choose_rows(n: int, length: int, rng: np.random.Generator) -> Array:
    """Choose groups of all sizes up to a third of the rows for a single deletion, one or two rows in a sequence."""
    size = int(np.exp(rng.uniform(0, np.log(n / 3)))) if length == 1 else int(rng.integers(1, 3))
    return rng.permutation(n)[: min(size, n - 2)]


def _judge(
    scene: SampleScene, retained: Regression, outcome: ml.Outcome[ml.SampleSet], length: int, policy: float
) -> SampleTrial:
    certificate = outcome.certificate
    moved_by = fit_map(scene.samples.samples.numpy(), outcome.posterior.samples.numpy())
    kl, chi_square = divergences(scene.posterior, retained, moved_by)
    reading, truth, chi_square_bound = certificate.constants.reading, kl, kl
    if reading == "weighted draws":
        truth = picked_divergence(scene.posterior, retained, moved_by, scene.effective)
        chi_square_bound = math.log1p(chi_square / scene.effective)
    low, high = certificate.interval or (0.0, math.inf)
    return SampleTrial(
        family=scene.family,
        parameters=scene.posterior.parameters,
        length=length,
        removed=len(scene.posterior.rows) - len(retained.rows),
        policy=policy,
        level=certificate.level,
        met=outcome.policy_met,
        reading=reading,
        low=low,
        high=high,
        epsilon=certificate.epsilon,
        truth=truth,
        chi_square_bound=chi_square_bound,
    )
