"""What training could still gain: how far the energy of a network's posterior falls in a few more, short trainings.

The energy is the negative ELBO, F(μ, σ) = E_q Σ_i -log p(z_i | θ) + KL(q ‖ prior). A gradient that is small under one
set of frozen draws does not show that F is near a minimum: the means may fit those draws, and the widths have no part
in it. So training goes on, means and widths, from several seeds, each with noise of its own. What counts is the fall of
F under further noise that no training has seen, the same before and after, on random rows:

    fall = F(μ, σ) - F(μ', σ')        its standard error is that of `_REPEATS` estimates with other noise and rows

The largest fall is a lower bound, up to that error, of what training left: longer training may find more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ml.inference.bayes_by_backprop import BayesByBackprop, train_network
from ml.models.network import Network
from ml.models.network_energy import FROZEN_DRAWS, NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian

RESTARTS = 3
NORMAL_95 = 1.96  # quantile of the normal distribution, two-sided
_TRAINING = BayesByBackprop(
    600, 128, 1e-3, decay=0.3, decay_every=200, draws=1, optimiser="adam", noise="weights"
)  # noise in the weights, because noise in the activations is not that of the posterior for convolutions
_REPEATS = 8
_ROWS = 2048
_JUDGING_SEED = 1000  # of noise and rows; the trainings have the seeds below it


@dataclass(frozen=True)
class CouldFall:
    """The largest fall of the energy over the restarts in nats, its standard error, and the energy before."""

    nats: float
    standard_error: float
    energy: float


def could_fall(network: Network, posterior: MeanFieldGaussian, data: Tensor) -> CouldFall:
    """Train on from `posterior` with `RESTARTS` seeds, and return the largest fall; 0 if all of them ended higher."""
    before = _energies(network, posterior, data)
    falls = [before - _energies(network, _continue(network, posterior, data, seed), data) for seed in range(RESTARTS)]
    largest = max(falls, key=lambda fall: float(fall.mean()))
    error = float(largest.std()) / math.sqrt(_REPEATS)
    return CouldFall(max(0.0, float(largest.mean())), error, float(before.mean()))


def _continue(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int) -> MeanFieldGaussian:
    training = replace(_TRAINING, batch_size=min(_TRAINING.batch_size, len(data)))
    return train_network(network, data, posterior, training, torch.Generator().manual_seed(seed)).posterior


def _energies(network: Network, posterior: MeanFieldGaussian, data: Tensor) -> Tensor:
    """Return estimates of F, each with noise and rows of its own, which are the same for every posterior."""
    return torch.tensor(
        [_energy(network, posterior, data, _JUDGING_SEED + repeat) for repeat in range(_REPEATS)], dtype=torch.float64
    )


def _energy(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int) -> float:
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:_ROWS].to(data.device)
    energy = NetworkEnergy(network, data, frozen_draws(posterior, FROZEN_DRAWS, seed))
    misfit = energy.misfit(torch.zeros_like(posterior.mean), rows)
    prior = MeanFieldGaussian(torch.zeros_like(posterior.mean), torch.full_like(posterior.std, network.prior_std))
    return len(data) / len(rows) * misfit + posterior.kl(prior)
