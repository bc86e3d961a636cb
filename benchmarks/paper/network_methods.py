"""Inference methods for networks, each with our forgetting and the paper's; and a cache of trained models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.timing import timed
from ml.baselines.paper_network import PaperNetworkRecipe, paper_forget_network, paper_forget_network_samples
from ml.certify.certificate import Certificate
from ml.certify.network.certificate import certify_network
from ml.forgetting.network import DEFAULT_RECIPE, TrustedStep, forget_network, forget_network_samples, thin
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import BayesByBackprop
from ml.inference.chains import Chains, sample
from ml.inference.network_training import train_to_convergence
from ml.inference.sgld import normal
from ml.models.network import Network
from ml.models.network_energy import can_be_read_whole, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet

Report = Callable[[float], None]


class Method(Protocol):
    """Inference method: training, prediction, our forgetting and the paper's."""

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> Any:
        """Return a trained posterior, which has `to_bytes`."""

    def load(self, content: bytes) -> Any: ...

    def draws(self, posterior: Any, count: int, seed: int) -> Tensor:
        """Return draws for prediction: (count, p)."""

    def frozen(self, posterior: Any) -> Tensor:
        """Return the draws that define the energy of our step."""

    def ours(self, network: Network, posterior: Any, data: Tensor, forgotten: Tensor) -> tuple[Any, TrustedStep]: ...

    def certify(self, network: Network, before: Any, after: Any, data: Tensor, forgotten: Tensor) -> Certificate | None:
        """Return the certificate of our forgetting, or None if this method has none."""

    def paper(
        self, network: Network, posterior: Any, data: Tensor, forgotten: Tensor, report: Report
    ) -> tuple[Any, float]:
        """Return the posterior, and the scale c·n' of the recursion."""


@dataclass(frozen=True)
class Variational:
    training: BayesByBackprop
    descent: AveragedDescent
    recipe: PaperNetworkRecipe

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> MeanFieldGaussian:
        total = self.training.iterations + self.descent.iterations
        return train_to_convergence(network, data, seed, self.training, self.descent, lambda i: report(i / total))

    def load(self, content: bytes) -> MeanFieldGaussian:
        return MeanFieldGaussian.from_bytes(content)

    def draws(self, posterior: MeanFieldGaussian, count: int, seed: int) -> Tensor:
        noise = normal(1.0, posterior.mean.expand(count, -1), torch.Generator().manual_seed(seed))
        return posterior.mean + posterior.std * noise

    def frozen(self, posterior: MeanFieldGaussian) -> Tensor:
        return frozen_draws(posterior, DEFAULT_RECIPE.draws, seed=0)

    def ours(
        self, network: Network, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor
    ) -> tuple[MeanFieldGaussian, TrustedStep]:
        outcome = forget_network(network, posterior, data, forgotten, torch.Generator().manual_seed(1))
        return outcome.posterior, outcome.step

    def certify(
        self, network: Network, before: MeanFieldGaussian, after: MeanFieldGaussian, data: Tensor, forgotten: Tensor
    ) -> Certificate | None:
        """Return None for a network that is too large for an estimate."""
        if not can_be_read_whole(network, len(data)):
            return None
        return certify_network(network, before, after, data, forgotten, torch.Generator().manual_seed(2))

    def paper(
        self, network: Network, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, report: Report
    ) -> tuple[MeanFieldGaussian, float]:
        generator = torch.Generator().manual_seed(1)
        outcome = paper_forget_network(
            network, posterior, data, forgotten, generator, self.recipe, lambda step, total: report(step / total)
        )
        return outcome.posterior, outcome.scale


@dataclass(frozen=True)
class Sampled:
    chains: Chains
    recipe: PaperNetworkRecipe

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> SampleSet:
        generator, total = torch.Generator().manual_seed(seed), self.chains.iterations
        start = network.initial(seed).mean
        return sample(network, data, start, self.chains, generator, lambda i, _: report(i / total)).sample_set

    def load(self, content: bytes) -> SampleSet:
        return SampleSet.from_bytes(content)

    def draws(self, posterior: SampleSet, count: int, seed: int) -> Tensor:
        chosen = torch.randperm(len(posterior.samples), generator=torch.Generator().manual_seed(seed))[:count]
        return posterior.samples[chosen]

    def frozen(self, posterior: SampleSet) -> Tensor:
        return thin(posterior.samples, DEFAULT_RECIPE.draws)

    def ours(
        self, network: Network, posterior: SampleSet, data: Tensor, forgotten: Tensor
    ) -> tuple[SampleSet, TrustedStep]:
        outcome = forget_network_samples(network, posterior, data, forgotten, torch.Generator().manual_seed(1))
        return outcome.posterior, outcome.step

    def certify(self, network: Network, before: SampleSet, after: SampleSet, data: Tensor, forgotten: Tensor) -> None:
        """Return None: with so few draws of chains that warn, weights say nothing about so many parameters."""

    def paper(
        self, network: Network, posterior: SampleSet, data: Tensor, forgotten: Tensor, report: Report
    ) -> tuple[SampleSet, float]:
        generator = torch.Generator().manual_seed(1)
        outcome = paper_forget_network_samples(
            network,
            posterior.samples,
            data,
            forgotten,
            generator,
            self.recipe,
            lambda step, total: report(step / total),
        )
        return SampleSet(outcome.samples, posterior.chain), outcome.scale


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
