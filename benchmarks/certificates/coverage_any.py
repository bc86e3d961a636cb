"""Coverage of certificates by weights alone, for sample sets of any model: conjugate, logistic, and tiny networks.

The truth is E_R log(1 + (w-1)/N), which bounds KL(reference ‖ a draw picked by its weight), or KL(draws ‖ reference)
for draws that are read as they are: in closed form or by quadrature for regressions (`coverage`), over thousands of
exact draws for networks (`network_truth`). Of a network, N is the number of independent draws that all its chains
together are worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.certificates.coverage import GROUPS, REWEIGHT, run_case
from benchmarks.certificates.coverage_summary import CoverageReport, Trial, summarise
from benchmarks.certificates.network_truth import draw_particles, run_chains
from ml.certify.certificate import Certificate
from ml.certify.importance import weigh_unmoved
from ml.certify.samples import certify_reweighted, get_reading
from ml.inference.autocorrelation import autocorrelation_times
from ml.inference.diagnostics import Diagnostics
from ml.inference.mixing import by_chain
from ml.inference.network_diagnostics import diagnose_network
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet

OnProgress = Callable[[str, float], None]

NETWORK = MLP(dimensions=2, hidden=2, classes=2, prior_std=1.0)
MODELS = ("linear", "logistic", "network")
_ROWS = 60
_CHAINS, _THINNING = 4, 2
_LARGEST_GROUP = 6


@dataclass(frozen=True)
class Plan:
    """Trials of each model. A network's trials share data sets, and sets of chains, which take long to draw."""

    trials: int = 200
    data_sets: int = 5
    chain_sets: int = 4
    draws_per_chain: int = 250
    particles: int = 4_000
    seed: int = 3

    @property
    def groups(self) -> int:
        return -(-self.trials // (self.data_sets * self.chain_sets))


QUICK = Plan(trials=12, data_sets=1, chain_sets=2, draws_per_chain=150, particles=600)


def coverage_any(plan: Plan, on_progress: OnProgress) -> dict[str, Any]:
    """Return the report as JSON values: that of all trials, and that of each model."""
    outcomes: dict[str, tuple[Trial, ...]] = {}
    for number, model in enumerate(MODELS):
        trials = _network_trials(plan) if model == "network" else _regression_trials(model, plan)
        outcomes[model] = tuple(_report_each(trials, model, plan.trials, on_progress, number))
    every = tuple(trial for trials in outcomes.values() for trial in trials)
    return {
        **_describe(summarise(plan.trials * len(MODELS), every, plan.seed)),
        "family": "samples-any",
        "models": {model: _describe(summarise(plan.trials, trials, plan.seed)) for model, trials in outcomes.items()},
    }


def _describe(report: CoverageReport) -> dict[str, object]:
    """Add `coverage`: the share of the issued intervals that hold the truth, as `share`."""
    content = report.to_dict()
    return {**content, "coverage": content["share"]}


def _report_each(
    trials: Iterator[Trial], model: str, total: int, on_progress: OnProgress, number: int
) -> Iterator[Trial]:
    for index, trial in enumerate(trials):
        on_progress(model, (number + min(1.0, index / total)) / len(MODELS))
        yield trial


def _regression_trials(family: str, plan: Plan) -> Iterator[Trial]:
    for index in range(plan.trials):
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + index)
        # The last one is the certificate that weights allow; the others read the draws as they are.
        yield run_case(family, REWEIGHT, GROUPS[index % len(GROUPS)], 1, index, generator)[-1]


def _network_trials(plan: Plan) -> Iterator[Trial]:
    left = plan.trials
    for number in range(plan.data_sets):
        scene = _draw_scene(plan, torch.Generator().manual_seed(plan.seed * 1_000_003 + number))
        for chains, diagnostics in scene.sets:
            for index in range(min(left, plan.groups)):
                yield scene.judge(chains, diagnostics, index)
                left -= 1


@dataclass(frozen=True, eq=False)
class _Scene:
    """Rows of a tiny network, exact draws of its posterior, and sets of chains with their diagnostics."""

    rows: Tensor
    particles: Tensor
    chains: SampleSet
    sets: tuple[tuple[SampleSet, Diagnostics], ...]
    generator: torch.Generator

    def judge(self, chains: SampleSet, diagnostics: Diagnostics, index: int) -> Trial:
        forgotten, group = self._draw_group(index)
        certificate = certify_reweighted(NETWORK, chains, self.rows, forgotten, diagnostics, 0.0, index).certificate
        constants, (low, epsilon) = certificate.constants, certificate.interval or (None, None)
        return Trial(
            family="network",
            method=REWEIGHT,
            group=group,
            deletions=1,
            removed=len(forgotten),
            n=len(self.rows),
            reading=get_reading(certificate),
            truth=self._truth(forgotten, certificate, len(chains.samples)),
            low=low,
            high=None if epsilon is None else epsilon - constants.undetectable,
            epsilon=epsilon,
            k_hat=constants.k_hat,
            relative_ess=constants.relative_ess,
            reasons=certificate.reasons,
        )

    def _draw_group(self, index: int) -> tuple[Tensor, str]:
        """Draw some random rows, or the neighbours of one, fewer more often."""
        size = 1 + int(_LARGEST_GROUP * float(torch.rand((), generator=self.generator)) ** 2)
        order = torch.randperm(len(self.rows), generator=self.generator)
        if index % 2 == 0:
            return order[:size], "uniform"
        features = self.rows[:, :-1]
        return (features - features[order[0]]).norm(dim=1).argsort()[:size], "clustered"

    def _truth(self, forgotten: Tensor, certificate: Certificate, draws: int) -> float:
        exact = SampleSet(self.particles, torch.zeros(len(self.particles), dtype=torch.int64))
        log_weights = weigh_unmoved(NETWORK, exact, self.rows[forgotten]).log_weights
        shift = torch.logsumexp(log_weights, 0) - math.log(len(log_weights))
        if get_reading(certificate) == "draws":
            return float(shift - log_weights.mean())
        weights = (log_weights - shift).exp()
        worth = draws / self._autocorrelation_time(forgotten)
        return float((weights * torch.log1p((weights - 1) / worth)).mean())

    def _autocorrelation_time(self, forgotten: Tensor) -> float:
        """Return that of the weights, over the chains of all sets."""
        log_weights = weigh_unmoved(NETWORK, self.chains, self.rows[forgotten]).log_weights
        weights = by_chain(log_weights.softmax(0), self.chains.chain).unsqueeze(2)
        return float(autocorrelation_times(weights - weights.mean()))


def _draw_scene(plan: Plan, generator: torch.Generator) -> _Scene:
    rows = draw_network_rows(_ROWS, generator)
    particles, step = draw_particles(NETWORK, rows, plan.particles, generator)
    starts = particles[torch.randperm(len(particles), generator=generator)[: _CHAINS * plan.chain_sets]]
    chains = run_chains(NETWORK, rows, starts, plan.draws_per_chain, _THINNING, step, generator)
    sets = tuple((part, diagnose_network(NETWORK, part, rows)) for part in split_chains(chains, _CHAINS))
    return _Scene(rows, particles, chains, sets, generator)


def draw_network_rows(count: int, generator: torch.Generator) -> Tensor:
    """Draw features and the labels that a random network gives them."""
    theta = 2 * torch.randn(NETWORK.parameter_count, generator=generator, dtype=torch.float64)
    features = torch.randn(count, NETWORK.dimensions, generator=generator, dtype=torch.float64)
    rows = torch.cat([features, torch.zeros(count, 1, dtype=torch.float64)], 1)
    chances = NETWORK.outputs(theta, rows).softmax(1)
    rows[:, -1] = torch.multinomial(chances, 1, generator=generator).squeeze(1).double()
    return rows


def split_chains(chains: SampleSet, count: int) -> list[SampleSet]:
    """Divide a set of many chains into sets of `count` chains each."""
    parts = []
    for first in range(0, int(chains.chain.max()) + 1, count):
        chosen = (chains.chain >= first) & (chains.chain < first + count)
        parts.append(SampleSet(chains.samples[chosen], chains.chain[chosen] - first))
    return parts
