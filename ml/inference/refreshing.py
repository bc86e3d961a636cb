"""Refresh of a sample set: its chains continue on the retained rows, so that their draws have even weights again.

Each chain starts at a stored draw, picked by its weight, so that it starts near the posterior of the retained rows; a
burn-in follows. Of the old set nothing else is used but its mean, near which the mode of a model with a Hessian is
looked for. So the new set depends on forgotten rows through the starts alone, and less with every iteration; the
weights, which were computed from these rows, are gone.

The state after each iteration can be stored, and the chains continue from it in another process. They do so with other
random numbers, and tune their steps again first: what is drawn meanwhile is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.chains import MIN_DRAWS_PER_CHAIN, SAFE_HMC, Chains, walk_chains
from ml.inference.hmc import HMC
from ml.inference.network_chains import configure_continued
from ml.inference.prior_hmc import PriorHMC
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet

_MIN_CHAINS = 2


@dataclass(frozen=True, eq=False)
class RefreshState:
    """Where the chains are, and the draws that they have made since the burn-in, each (chains, p)."""

    thetas: Tensor
    draws: tuple[Tensor, ...]
    length: int
    """Draws that each chain shall make."""
    fraction: float = 0.0
    """Share of the iterations that are done."""

    @property
    def done(self) -> bool:
        return len(self.draws) == self.length

    @property
    def sample_set(self) -> SampleSet:
        """The draws, chain by chain, with even weights."""
        chains = torch.arange(len(self.thetas), device=self.thetas.device)
        return SampleSet(torch.stack(self.draws, 1).flatten(0, 1), chains.repeat_interleave(len(self.draws)))

    def to_bytes(self) -> bytes:
        draws = torch.stack(self.draws, 1) if self.draws else self.thetas.new_zeros(len(self.thetas), 0, 1)
        return save({"thetas": self.thetas.contiguous(), "draws": draws, "length": torch.tensor([self.length])})

    @classmethod
    def from_bytes(cls, content: bytes) -> RefreshState:
        try:
            tensors = load(content)
            return cls(tensors["thetas"], tensors["draws"].unbind(1), int(tensors["length"]))
        except (SafetensorError, KeyError) as error:
            raise InvalidInput(f"not a checkpoint of a refresh ({error}): begin it anew") from error

    def to(self, device: torch.device) -> RefreshState:
        return replace(self, thetas=self.thetas.to(device), draws=tuple(draw.to(device) for draw in self.draws))


def begin_refresh(posterior: SampleSet, generator: torch.Generator) -> RefreshState:
    """Return the state before the first iteration: as many chains as the set has, each at a draw picked by weight."""
    chains = max(_MIN_CHAINS, len(set(posterior.chain.tolist())))
    picked = torch.multinomial(posterior.weights.cpu(), chains, generator=generator).to(posterior.samples.device)
    return RefreshState(posterior.samples[picked], (), -(-len(posterior.samples) // chains))


def continue_refresh(
    likelihood: Likelihood, posterior: SampleSet, data: Tensor, state: RefreshState, generator: torch.Generator
) -> Iterator[RefreshState]:
    """Yield the state after each iteration on the rows `data`, until each chain has its draws.

    `posterior` is the set that is refreshed.
    """
    if state.done:
        return
    config, before = _configure(likelihood, len(data), state), len(state.draws) / state.length
    walk = walk_chains(likelihood, data, state.thetas, posterior.mean, config, generator)
    for iteration, thetas in enumerate(walk, 1):
        draws = (*state.draws, thetas) if config.is_draw(iteration) else state.draws
        fraction = before + (1 - before) * iteration / config.iterations
        state = replace(state, thetas=thetas, draws=draws, fraction=fraction)
        yield state
        if state.done:
            return


def _configure(likelihood: Likelihood, rows: int, state: RefreshState) -> Chains:
    """Return the settings of the remaining iterations. Of chains with draws, only the tuning is burnt in again."""
    remaining = max(MIN_DRAWS_PER_CHAIN, state.length - len(state.draws))
    if isinstance(likelihood, Network):
        config = configure_continued(likelihood, rows, len(state.thetas), remaining)
    else:
        config = replace(SAFE_HMC, iterations=SAFE_HMC.burn_in + remaining, count=len(state.thetas))
    if state.draws and isinstance(config.algorithm, HMC | PriorHMC):
        skipped = config.burn_in - config.algorithm.tuning
        config = replace(config, iterations=config.iterations - skipped, burn_in=config.algorithm.tuning)
    return config
