"""Sample sets of networks: the right sampler for the size of a network and its data, and what it costs.

    exact          PriorHMC on every row, for networks of up to some thousand parameters. Its draws pass for draws of
                   the posterior: R̂ and ESS of log-likelihoods, mean gradient, virial and width.
    minibatches    SGHMC with a constant step for all others. Its draws average predictions well, but are no posterior
                   draws.

Each chain starts at weights of its own, so that R̂ compares chains that had nothing in common. In function space they
agree; single weights may not, as hidden units can change places.

Costs are counted in row passes: gradients of log p(z | θ) of one row at one θ.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor

from ml.inference.chains import LONG_BNN_SGHMC, Chains, OnStep, Sampled, sample
from ml.inference.prior_hmc import PriorHMC
from ml.inference.sgld import normal
from ml.models.network import Network

# Largest number of parameters times rows for which exact draws take minutes, not hours, on one core.
_MAX_EXACT = 20_000_000
_TUNING = 100
# Tuned steps of a trajectory in units of prior_std·√rows: 2.5 to 3.3 on digits, with 360 and 1,437 rows, 8 to 64 hidden
# units, prior_std 0.15 and 0.5.
_STEPS = 2.8


def configure(network: Network, rows: int) -> Chains:
    """Return the chains for a network and its number of rows."""
    if network.parameter_count * rows > _MAX_EXACT:
        return replace(LONG_BNN_SGHMC, batch_size=min(rows, LONG_BNN_SGHMC.batch_size or rows))
    algorithm = PriorHMC(network.prior_std, steps=_expected_steps(network, rows), tuning=_TUNING)
    return Chains(algorithm, iterations=600, burn_in=_TUNING)


def configure_continued(network: Network, rows: int, chains: int, draws_per_chain: int) -> Chains:
    """Return the settings under which chains go on until each has so many draws after its burn-in."""
    config = configure(network, rows)
    drawn = (iteration for iteration in itertools.count(1) if config.is_draw(iteration))
    last = next(itertools.islice(drawn, draws_per_chain - 1, None))
    return replace(config, count=chains, iterations=last)


def sample_network(
    network: Network,
    data: Tensor,
    generator: torch.Generator,
    on_step: OnStep | None = None,
    config: Chains | None = None,
) -> Sampled:
    """Sample a network's posterior from scratch. `on_step` gets the iteration and the step size."""
    config = config or configure(network, len(data))
    starts = _starts(network, config, generator).to(data.device)
    return sample(network, data.float(), starts, config, generator, on_step)


def continue_chains(
    network: Network,
    data: Tensor,
    positions: Tensor,
    draws_per_chain: int,
    generator: torch.Generator,
    on_step: OnStep | None = None,
) -> Sampled:
    """Sample on from the last draw of each chain, (chains, p), on other rows if need be."""
    config = configure_continued(network, len(data), len(positions), draws_per_chain)
    return sample(network, data.float(), positions, config, generator, on_step)


def _expected_steps(network: Network, rows: int) -> int:
    return math.ceil(_STEPS * network.prior_std * math.sqrt(rows))


def _starts(network: Network, config: Chains, generator: torch.Generator) -> Tensor:
    """Return a θ for each chain: draws of the prior where the sampler is exact, else trainable weights."""
    if isinstance(config.algorithm, PriorHMC):
        like = torch.empty(config.count, network.parameter_count, dtype=torch.float64)
        return normal(network.prior_std**2, like, generator)
    seeds = torch.randint(2**31, (config.count,), generator=generator, device=generator.device).tolist()
    return torch.stack([network.initial(seed).mean for seed in seeds])
