"""Training of networks to convergence: Bayes by Backprop, then descent of the means on a frozen-noise energy.

Forgetting needs a converged posterior: before convergence, training moves it more than the removal of a few rows does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ml.inference.averaged_descent import SAFE_AVERAGED_DESCENT, AveragedDescent, average_descent
from ml.inference.bayes_by_backprop import SAFE_BNN, BayesByBackprop, train_network
from ml.inference.tilted_descent import DescentLimits, descend_tilted
from ml.models.network import Network
from ml.models.network_energy import can_be_read_whole, frozen_energy
from ml.models.tilted_energy import TiltedEnergy
from ml.posteriors.mean_field import MeanFieldGaussian

OnStep = Callable[[int], None]
_TO_THE_END = DescentLimits(rounds=30, products=100, nats=1e-4)


def train_to_convergence(
    network: Network,
    data: Tensor,
    seed: int,
    training: BayesByBackprop = SAFE_BNN,
    descent: AveragedDescent = SAFE_AVERAGED_DESCENT,
    on_step: OnStep | None = None,
) -> MeanFieldGaussian:
    """Train from scratch in the precision of `data`. `on_step` counts the iterations of both phases."""
    report = on_step or (lambda _: None)
    generator, start = torch.Generator().manual_seed(seed), network.initial(seed).to(data.device)
    training = replace(training, batch_size=min(training.batch_size, len(data)))
    trained = train_network(network, data, start, training, generator, lambda i, _: report(i)).posterior
    return converge_means(network, trained, data, generator, descent, lambda i: report(training.iterations + i))


def converge_means(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    generator: torch.Generator,
    descent: AveragedDescent = SAFE_AVERAGED_DESCENT,
    on_step: OnStep | None = None,
) -> MeanFieldGaussian:
    """Move the means to where the gradient of the energy over `data` nearly vanishes; the widths stay.

    Averaged descent comes near a minimum. A network that is small enough is brought into it, by steps on all rows.
    """
    energy = frozen_energy(network, posterior, data)
    drift = average_descent(energy, generator, descent, on_step)
    if can_be_read_whole(network, len(data)):
        rows = torch.arange(len(data), device=data.device)
        untilted = TiltedEnergy(energy, rows, -energy.gradient(torch.zeros_like(drift), rows))
        drift = descend_tilted(untilted, drift, posterior.std, _TO_THE_END).drift
    return MeanFieldGaussian(posterior.mean + drift, posterior.std)
