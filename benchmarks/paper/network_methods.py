"""Inference methods for networks, each with its ways of forgetting and their controls; and a cache of models.

    shift       one influence step under a trust region; of sample sets, all draws move alike
    descent     the shift, then averaged descent on the tilted energy
    paper       the paper's recursion, in groups of 64 rows
    reweight    sample sets: the draws stay, and predictions are averaged with their weights
    temper      sample sets: weights in stages, with chain steps on minibatches between them

A control takes the very same steps with nothing removed. That leaves a shift, the paper's recursion and weights where
they were, so their control is doing nothing; descent and tempering have controls of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.timing import timed
from ml.baselines.paper_network import PaperNetworkRecipe, paper_forget_network, paper_forget_network_samples
from ml.certify.certificate import Certificate
from ml.certify.importance import pareto_k, relative_ess, weigh_unmoved
from ml.certify.network.certificate import certify_network
from ml.errors import NumericalFailure
from ml.forgetting.network import (
    InfluenceResult,
    NetworkRecipe,
    descend,
    forget_network,
    forget_network_samples,
    thin,
)
from ml.forgetting.tempering import TemperConfig, expected_row_passes, move_draws, temper
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import BayesByBackprop
from ml.inference.chains import Chains, sample
from ml.inference.network_training import train_to_convergence
from ml.inference.sgld import normal
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, can_be_read_whole, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet

MIN_RELATIVE_ESS, MAX_K_HAT = 0.5, 0.5
"""Limits of weights that are not refused."""
_FIRST_ROWS = 128
"""Rows of a group that are weighed first: for all of a large one, weights cost more than retraining."""
_SEED = 1

Report = Callable[[float], None]
Forgotten = tuple[Any, dict[str, float]]
"""Posterior after a way of forgetting, and facts about how it was made."""


@dataclass(frozen=True, eq=False)
class Removal:
    """Rows to remove from the data of a trained network, and its posterior before."""

    network: Network
    before: Any
    data: Tensor
    forgotten: Tensor


class Method(Protocol):
    """Inference method: training, prediction and ways of forgetting."""

    @property
    def recipe(self) -> NetworkRecipe:
        """Settings of our shift and descent."""

    @property
    def ways(self) -> tuple[str, ...]:
        """Names of the ways of forgetting and of their controls, in the order in which they are tried."""

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> Any:
        """Return a trained posterior, which has `to_bytes`."""

    def load(self, content: bytes) -> Any: ...

    def draws(self, posterior: Any, count: int, seed: int) -> Tensor:
        """Return draws for prediction, of equal weight: (count, p)."""

    def frozen(self, posterior: Any) -> Tensor:
        """Return the draws that define the energy of our step."""

    def forget(self, way: str, removal: Removal, earlier: dict[str, Any], report: Report) -> Forgotten:
        """Forget by one of the ways. `earlier` has the posterior of each way before, and its facts as `way facts`.

        NumericalFailure says why a way is refused or not taken.
        """

    def certify(self, removal: Removal, after: Any) -> Certificate | None:
        """Return the certificate of a shift, or None if this method has none."""


@dataclass(frozen=True)
class Variational:
    training: BayesByBackprop
    descent: AveragedDescent
    recipe: NetworkRecipe
    paper: PaperNetworkRecipe
    ways = ("paper", "shift", "descent", "descent control")

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> MeanFieldGaussian:
        total = self.training.iterations + self.descent.iterations
        return train_to_convergence(network, data, seed, self.training, self.descent, lambda i: report(i / total))

    def load(self, content: bytes) -> MeanFieldGaussian:
        return MeanFieldGaussian.from_bytes(content)

    def draws(self, posterior: MeanFieldGaussian, count: int, seed: int) -> Tensor:
        noise = normal(1.0, posterior.mean.expand(count, -1), torch.Generator().manual_seed(seed))
        return posterior.mean + posterior.std * noise

    def frozen(self, posterior: MeanFieldGaussian) -> Tensor:
        return frozen_draws(posterior, self.recipe.draws, seed=0)

    def forget(self, way: str, removal: Removal, earlier: dict[str, Any], report: Report) -> Forgotten:
        if way == "paper":
            return self._paper(removal, report)
        if way == "shift":
            step_only = replace(self.recipe, large_share=1.0)
            return _facts(
                forget_network(removal.network, removal.before, removal.data, removal.forgotten, _seeded(), step_only)
            )
        after = earlier["shift"] if way == "descent" else removal.before
        retraining = self.training.iterations * self.training.batch_size + _descent_passes(self.descent)
        drift = _descend(self, removal, after.mean - removal.before.mean, way, retraining)
        return MeanFieldGaussian(removal.before.mean + drift, after.std), {}

    def certify(self, removal: Removal, after: MeanFieldGaussian) -> Certificate | None:
        """Return None for a network that is too large for an estimate."""
        if not can_be_read_whole(removal.network, len(removal.data)):
            return None
        # Not the seed of the step: rows that judge the step must not be the rows it was computed from.
        return certify_network(
            removal.network, removal.before, after, removal.data, removal.forgotten, torch.Generator().manual_seed(2)
        )

    def _paper(self, removal: Removal, report: Report) -> Forgotten:
        outcome = paper_forget_network(
            removal.network,
            removal.before,
            removal.data,
            removal.forgotten,
            _seeded(),
            self.paper,
            lambda step, total: report(step / total),
        )
        return outcome.posterior, {"scale": outcome.scale}


@dataclass(frozen=True)
class Sampled:
    chains: Chains
    recipe: NetworkRecipe
    paper: PaperNetworkRecipe
    tempering: TemperConfig
    ways = ("paper", "shift", "descent", "descent control", "reweight", "temper", "temper control")

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> SampleSet:
        generator, total = torch.Generator().manual_seed(seed), self.chains.iterations
        start = network.initial(seed).mean
        return sample(network, data, start, self.chains, generator, lambda i, _: report(i / total)).sample_set

    def load(self, content: bytes) -> SampleSet:
        return SampleSet.from_bytes(content)

    def draws(self, posterior: SampleSet, count: int, seed: int) -> Tensor:
        """Pick draws systematically by their weights: every k-th one if these are even."""
        heights = posterior.weights.cumsum(0)
        marks = (torch.arange(count, dtype=heights.dtype) + 0.5) / count
        return posterior.samples[torch.searchsorted(heights, marks).clamp(max=len(heights) - 1)]

    def frozen(self, posterior: SampleSet) -> Tensor:
        return thin(posterior.samples, self.recipe.draws)

    def forget(self, way: str, removal: Removal, earlier: dict[str, Any], report: Report) -> Forgotten:
        if way == "paper":
            return self._paper(removal, report)
        if way == "shift":
            return self._shift(removal)
        if way == "reweight":
            return _reweight(removal)
        if way == "temper":
            return self._temper(removal, report)
        if way == "temper control":
            return self._move(removal, int(earlier["temper facts"]["stages"]))
        after = earlier["shift"] if way == "descent" else removal.before
        retraining = self.chains.row_passes(len(removal.data) - len(removal.forgotten))
        drift = _descend(self, removal, after.samples[0] - removal.before.samples[0], way, retraining)
        return SampleSet(removal.before.samples + drift, removal.before.chain), {}

    def certify(self, removal: Removal, after: SampleSet) -> None:
        """Return None: with so few draws of chains that warn, weights of moved draws say nothing."""

    def _shift(self, removal: Removal) -> Forgotten:
        step_only = replace(self.recipe, large_share=1.0)
        return _facts(
            forget_network_samples(
                removal.network, removal.before, removal.data, removal.forgotten, _seeded(), step_only
            )
        )

    def _temper(self, removal: Removal, report: Report) -> Forgotten:
        network, before, data, forgotten = removal.network, removal.before, removal.data, removal.forgotten
        affordable = self.chains.row_passes(len(data) - len(forgotten))
        for part in sorted({min(_FIRST_ROWS, len(forgotten)), len(forgotten)}):
            expected = expected_row_passes(network, before, data, forgotten[:part], self.tempering)
            _check_cost(expected, affordable)
        config = replace(self.tempering, max_row_passes=affordable)
        after = temper(network, before, data, forgotten, _seeded(), config, lambda _, removed: report(removed))
        facts = {"stages": after.stages, "ancestors": after.ancestors, "row_passes": after.row_passes}
        return after.sample_set, {**facts, "expected_row_passes": expected, "relative_ess": min(after.ess_path)}

    def _move(self, removal: Removal, stages: int) -> Forgotten:
        return move_draws(removal.network, removal.before, removal.data, _seeded(), stages, self.tempering), {}

    def _paper(self, removal: Removal, report: Report) -> Forgotten:
        outcome = paper_forget_network_samples(
            removal.network,
            removal.before.samples,
            removal.data,
            removal.forgotten,
            _seeded(),
            self.paper,
            lambda step, total: report(step / total),
        )
        return SampleSet(outcome.samples, removal.before.chain), {"scale": outcome.scale}


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)


def _facts(outcome: InfluenceResult[Any]) -> Forgotten:
    step = outcome.step
    return outcome.posterior, {name: getattr(step, name) for name in ("residual", "damping", "agreement", "products")}


def _reweight(removal: Removal) -> Forgotten:
    """Weigh the draws. Weights that leave too few of them are refused, as soon as a part of the rows shows it."""
    for part in sorted({min(_FIRST_ROWS, len(removal.forgotten)), len(removal.forgotten)}):
        after = weigh_unmoved(removal.network, removal.before, removal.data[removal.forgotten[:part]])
        ess, k_hat = relative_ess(after.log_weights), pareto_k(after.log_weights, after.log_weights_error)
        if ess < MIN_RELATIVE_ESS or k_hat > MAX_K_HAT:
            raise NumericalFailure(
                f"refused: {100 * ess:.2g} % of {len(after.samples)} draws left by {part:,} rows (at least "
                f"{100 * MIN_RELATIVE_ESS:g} %), Pareto k-hat {k_hat:.2f} (at most {MAX_K_HAT})"
            )
    return after, {"relative_ess": ess, "k_hat": k_hat}


def _descend(method: Method, removal: Removal, drift: Tensor, way: str, retraining: int) -> Tensor:
    """Return the drift of the draws after descent from `drift`: of the control, with nothing removed."""
    _check_cost(len(removal.data) + _descent_passes(method.recipe.descent), retraining)
    energy = NetworkEnergy(removal.network, removal.data, method.frozen(removal.before))
    forgotten = removal.forgotten if way == "descent" else removal.forgotten[:0]
    return descend(energy, drift, forgotten, _seeded(), replace(method.recipe, large_share=0.0))


def _descent_passes(descent: AveragedDescent) -> int:
    return descent.iterations * descent.batch_size


def _check_cost(expected: int, retraining: int) -> None:
    if expected > retraining:
        raise NumericalFailure(f"not taken: {expected:.2g} gradients of a row, retraining {retraining:.2g}")


@dataclass(frozen=True)
class CachedModel:
    """Posterior, the seconds of processor time it took, and facts about how it was made."""

    posterior: Any
    seconds: float
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelCache:
    """Folder of models that took long to compute."""

    method: Method
    case: str
    folder: Path

    def train(self, network: Network, data: Tensor, removed: int, seed: int, report: Report) -> CachedModel:
        """Return a model trained on `data`, which is the whole data set less `removed` rows."""
        name = f"without{removed}-seed{seed}"
        return self.get(name, lambda: (self.method.train(network, data, seed, report), {}))

    def get(self, name: str, compute: Callable[[], tuple[Any, dict[str, float]]]) -> CachedModel:
        """Return the model of that name, computed only if no earlier run stored it."""
        posterior_file = self.folder / f"{self.case}-{name}.safetensors"
        facts_file = posterior_file.with_suffix(".json")
        if facts_file.exists():
            facts = json.loads(facts_file.read_text())
            return CachedModel(self.method.load(posterior_file.read_bytes()), facts.pop("seconds"), facts)
        seconds, (posterior, facts) = timed(compute)
        posterior_file.write_bytes(posterior.to_bytes())
        # Written last: a model without this file is incomplete and is computed again.
        facts_file.write_text(json.dumps({"seconds": seconds, **facts}))
        return CachedModel(posterior, seconds, facts)
