"""Kinds of inference for networks, each with the two ways to forget in it; and a shelf for what took long to make."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.timing import timed
from ml.baselines.paper_network import PaperNetworkRecipe, paper_forget_network, paper_forget_network_samples
from ml.certify.certificate import Certificate
from ml.certify.network import certify_network
from ml.forgetting.network import OURS, TrustedStep, forget_network, forget_network_samples, spread_out
from ml.inference.averaged_descent import Settling
from ml.inference.bayes_by_backprop import BayesByBackprop
from ml.inference.chains import Chains, sample
from ml.inference.network_training import train_to_rest
from ml.inference.sgld import normal
from ml.models.network import Network
from ml.models.network_energy import frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet

Report = Callable[[float], None]


class Method(Protocol):
    """One kind of inference: how it trains, how it predicts, and the two ways to forget in it."""

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> Any:
        """A posterior, which has `to_bytes`."""

    def load(self, content: bytes) -> Any: ...

    def draws(self, posterior: Any, count: int, seed: int) -> Tensor:
        """(count, p) of the posterior, to predict with."""

    def frozen(self, posterior: Any) -> Tensor:
        """Those on whose energy our step works."""

    def ours(self, network: Network, posterior: Any, data: Tensor, forgotten: Tensor) -> tuple[Any, TrustedStep]: ...

    def certify(self, network: Network, before: Any, after: Any, data: Tensor, forgotten: Tensor) -> Certificate | None:
        """Of our way, where this kind of inference has one."""

    def paper(
        self, network: Network, posterior: Any, data: Tensor, forgotten: Tensor, report: Report
    ) -> tuple[Any, float]:
        """The posterior, and c·n'."""


@dataclass(frozen=True)
class Variational:
    training: BayesByBackprop
    settling: Settling
    recipe: PaperNetworkRecipe

    def train(self, network: Network, data: Tensor, seed: int, report: Report) -> MeanFieldGaussian:
        total = self.training.iterations + self.settling.iterations
        return train_to_rest(network, data, seed, self.training, self.settling, lambda i: report(i / total))

    def load(self, content: bytes) -> MeanFieldGaussian:
        return MeanFieldGaussian.from_bytes(content)

    def draws(self, posterior: MeanFieldGaussian, count: int, seed: int) -> Tensor:
        noise = normal(1.0, posterior.mean.expand(count, -1), torch.Generator().manual_seed(seed))
        return posterior.mean + posterior.std * noise

    def frozen(self, posterior: MeanFieldGaussian) -> Tensor:
        return frozen_draws(posterior, OURS.draws, seed=0)

    def ours(
        self, network: Network, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor
    ) -> tuple[MeanFieldGaussian, TrustedStep]:
        outcome = forget_network(network, posterior, data, forgotten, torch.Generator().manual_seed(1))
        return outcome.posterior, outcome.step

    def certify(
        self, network: Network, before: MeanFieldGaussian, after: MeanFieldGaussian, data: Tensor, forgotten: Tensor
    ) -> Certificate:
        # Another seed than that of the step: the rows that judge it must not be those it was made from.
        return certify_network(network, before, after, data, forgotten, torch.Generator().manual_seed(2))

    def paper(
        self, network: Network, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, report: Report
    ) -> tuple[MeanFieldGaussian, float]:
        generator = torch.Generator().manual_seed(1)
        outcome = paper_forget_network(
            network, posterior, data, forgotten, generator, self.recipe, lambda done, all_: report(done / all_)
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
        return spread_out(posterior.samples, OURS.draws)

    def ours(
        self, network: Network, posterior: SampleSet, data: Tensor, forgotten: Tensor
    ) -> tuple[SampleSet, TrustedStep]:
        outcome = forget_network_samples(network, posterior, data, forgotten, torch.Generator().manual_seed(1))
        return outcome.sample_set, outcome.step

    def certify(self, network: Network, before: SampleSet, after: SampleSet, data: Tensor, forgotten: Tensor) -> None:
        """None: weights say nothing about so many parameters from so few draws, of chains that warn."""

    def paper(
        self, network: Network, posterior: SampleSet, data: Tensor, forgotten: Tensor, report: Report
    ) -> tuple[SampleSet, float]:
        generator = torch.Generator().manual_seed(1)
        outcome = paper_forget_network_samples(
            network, posterior.samples, data, forgotten, generator, self.recipe, lambda done, all_: report(done / all_)
        )
        return SampleSet(outcome.samples, posterior.chain), outcome.scale


@dataclass(frozen=True)
class Shelf:
    """Keeps every model that took long to make: the posterior, the seconds it took, and facts about it."""

    how: Method
    case: str
    folder: Path

    def trained(
        self, network: Network, data: Tensor, without: int, seed: int, report: Report
    ) -> tuple[Any, float, dict[str, float]]:
        """Trained on `data`, which lack so many rows of the whole."""
        return self.made(f"without{without}-seed{seed}", lambda: (self.how.train(network, data, seed, report), {}))

    def made(self, name: str, make: Callable[[], tuple[Any, dict[str, float]]]) -> tuple[Any, float, dict[str, float]]:
        """Fetched where an earlier run has made it."""
        stored = self.folder / f"{self.case}-{name}.safetensors"
        label = stored.with_suffix(".json")
        if label.exists():
            kept = json.loads(label.read_text())
            return self.how.load(stored.read_bytes()), kept.pop("seconds"), kept
        seconds, (posterior, facts) = timed(make)
        stored.write_bytes(posterior.to_bytes())
        # Last, so that half a model is never taken for one.
        label.write_text(json.dumps({"seconds": seconds, **facts}))
        return posterior, seconds, facts
