"""Networks trained until they rest: Bayes by Backprop, then the means brought to rest on a frozen-noise energy.

Only what is at rest can forget: a posterior that still moves is moved by training more than by the rows it should lose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ml.inference.averaged_descent import SAFE_SETTLING, Settling, settle
from ml.inference.bayes_by_backprop import SAFE_BNN, BayesByBackprop, train_network
from ml.models.network import Network
from ml.models.network_energy import FROZEN_DRAWS, NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian

OnStep = Callable[[int], None]


def train_to_rest(
    network: Network,
    data: Tensor,
    seed: int,
    training: BayesByBackprop = SAFE_BNN,
    settling: Settling = SAFE_SETTLING,
    on_step: OnStep | None = None,
) -> MeanFieldGaussian:
    """From scratch, computing in the precision of `data`. `on_step` counts the iterations of both parts together."""
    step = on_step or _silent
    generator, start = torch.Generator().manual_seed(seed), network.initial(seed).to(data.device)
    fitting = replace(training, batch_size=min(training.batch_size, len(data)))
    found = train_network(network, data, start, fitting, generator, lambda i, _: step(i)).posterior
    return bring_to_rest(network, found, data, generator, settling, lambda i: step(training.iterations + i))


def bring_to_rest(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    generator: torch.Generator,
    settling: Settling = SAFE_SETTLING,
    on_step: OnStep | None = None,
) -> MeanFieldGaussian:
    """The means where the energy over `data` has hardly any slope; the widths stay."""
    energy = NetworkEnergy(network, data, frozen_draws(posterior, FROZEN_DRAWS, seed=0))
    return MeanFieldGaussian(posterior.mean + settle(energy, generator, settling, on_step), posterior.std)


def _silent(_iteration: int) -> None:
    pass
