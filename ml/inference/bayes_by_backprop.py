"""Bayes by Backprop (C. Blundell et al., 2015): mean-field variational inference for networks on minibatches.

With q = N(μ, diag σ²) and θ = μ + σ∘ε, ε ~ N(0, I), a minibatch B of n rows gives the unbiased estimate

    F̂ = -(n/|B|) Σ_{i∈B} log p(z_i | θ) + KL(q ‖ prior)          KL = Σ_j (μ_j² + σ_j²)/(2s²) - log(σ_j/s) - ½

of the energy (the negative ELBO; s is the prior's std), which is minimised in (μ, log σ). Noise enters either in the

    weights       one ε for the whole batch, as above: the noise of its rows is correlated and does not average out
    activations   local reparameterisation (D. Kingma, T. Salimans, M. Welling, 2015): each row has its own noise in the
                  pre-activations of each layer, a = linear(x, μ) + linear(x², σ²)^(1/2) ∘ ε

For dense layers both have the same expectation. A convolution uses its weights at many positions, whose activations are
correlated. Drawn independently, as is usual and as in the paper, each has the right distribution, but not all jointly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.inference.sgld import normal
from ml.models.checks import check_count, check_scale
from ml.models.network import Network
from ml.posteriors.mean_field import MeanFieldGaussian

_EXPLODED = 1e3  # times the energy of the first step

OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class BayesByBackprop:
    """Configuration of training. Step t follows ∇F̂/n at the rate learning_rate·decay^⌊(t-1)/decay_every⌋.

    The energy is per row, so that a rate means the same for every n: 0.5 here is 0.5/n for an energy that is a sum.
    Plain descent ("sgd") diverges if the rate exceeds 2 over the largest curvature of F/n; "adam" scales each
    coordinate by its own gradients. `draws` is the number of ε averaged in a step.
    """

    iterations: int
    batch_size: int
    learning_rate: float
    decay: float
    decay_every: int
    draws: int
    optimiser: Literal["sgd", "adam"]
    noise: Literal["activations", "weights"] = "activations"

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size", "decay_every", "draws"):
            check_count(name, getattr(self, name))
        check_scale("learning_rate", self.learning_rate)
        if not 0 < self.decay <= 1:
            raise InvalidInput(f"decay is {self.decay}: pass a factor above 0 and up to 1")
        if self.optimiser not in ("sgd", "adam") or self.noise not in ("activations", "weights"):
            raise InvalidInput(
                f"optimiser is {self.optimiser!r} and noise {self.noise!r}: choose 'sgd' or 'adam', and 'activations' "
                "or 'weights'"
            )

    def rate(self, iteration: int) -> float:
        return self.learning_rate * self.decay ** ((iteration - 1) // self.decay_every)


# Section 7.2.1 of the BIF paper. With its 60,000 rows the rates add up to 2210/n = 0.04, and the prior moves log σ by
# at most that: σ stays near its value in `start`, which is 0.1 in the authors' program.
PAPER_BNN = BayesByBackprop(10_000, 128, 0.5, decay=0.1, decay_every=4_000, draws=5, optimiser="sgd")
# Our settings: insensitive to the scale of the rows, and nearly converged at the end.
SAFE_BNN = BayesByBackprop(6_000, 128, 3e-3, decay=0.3, decay_every=1_500, draws=1, optimiser="adam")


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A trained posterior, and F̂ of every iteration in float64."""

    posterior: MeanFieldGaussian
    energies: Tensor


def train_network(
    network: Network,
    data: Tensor,
    start: MeanFieldGaussian,
    config: BayesByBackprop,
    generator: torch.Generator,
    on_step: OnStep | None = None,
) -> TrainedNetwork:
    """Minimise F̂ from `start`, in the precision of `data`.

    `on_step(iteration, energy)` is called after every iteration. The result is near a minimum, not at one: minibatches
    and draws leave noise of the size of the last learning rate.
    """
    _check(network, data, start, config)
    mean = start.mean.to(data.dtype, copy=True).requires_grad_()
    log_std = start.std.log().to(data.dtype).requires_grad_()
    optimiser_class = torch.optim.Adam if config.optimiser == "adam" else torch.optim.SGD
    optimiser = optimiser_class([mean, log_std], lr=config.rate(1))
    batches = _batches(data, config.batch_size, generator)
    energies = torch.empty(config.iterations, dtype=torch.float64)
    for iteration in range(1, config.iterations + 1):
        energy = estimate_energy(network, mean, log_std, next(batches), len(data), config, generator)
        _check_energy(energy.item(), float(energies[0]), iteration)
        energies[iteration - 1] = energy.item()
        optimiser.param_groups[0]["lr"] = config.rate(iteration)
        optimiser.zero_grad()
        (energy / len(data)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if on_step is not None:
            on_step(iteration, float(energies[iteration - 1]))
    return TrainedNetwork(_posterior(mean.detach().double(), log_std.detach().double().exp()), energies)


def estimate_energy(
    network: Network,
    mean: Tensor,
    log_std: Tensor,
    rows: Tensor,
    n: int,
    config: BayesByBackprop,
    generator: torch.Generator,
) -> Tensor:
    """Return F̂ over n rows, estimated from these rows; differentiable in μ and log σ."""
    std = log_std.exp()
    if config.noise == "activations":
        outputs = outputs_with_activation_noise(network, mean, std, rows.repeat(config.draws, 1), generator)
    else:
        outputs = torch.cat(
            [outputs_with_weight_noise(network, mean, std, rows, generator) for _ in range(config.draws)]
        )
    scores = network.score(outputs, rows[:, -1].repeat(config.draws))
    size = (mean.square() + std.square()).sum() / (2 * network.prior_std**2)
    kl = size - log_std.sum() + len(mean) * (math.log(network.prior_std) - 0.5)
    return kl - n * scores.mean()


def outputs_with_activation_noise(
    network: Network, mean: Tensor, std: Tensor, rows: Tensor, generator: torch.Generator
) -> Tensor:
    """Return outputs with noise in the activations (local reparameterisation)."""
    x = network.inputs(rows, mean.dtype)
    parts = zip(network.layers, network.unpack(mean), network.unpack(std.square()), strict=True)
    for layer, means, variances in parts:
        centre, variance = layer.linear(x, *means), layer.linear(x.square(), *variances)
        x = layer.activation(centre + variance.sqrt() * normal(1.0, centre, generator))
    return x


def outputs_with_weight_noise(
    network: Network, mean: Tensor, std: Tensor, rows: Tensor, generator: torch.Generator
) -> Tensor:
    """Return outputs under one draw of the weights."""
    return network.outputs(mean + std * normal(1.0, mean, generator), rows)


def _batches(data: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches from a new permutation of the rows in each epoch. Rows that do not fill a batch are left out."""
    used = len(data) // size * size
    while True:
        order = torch.randperm(len(data), generator=generator, device=generator.device)[:used].to(data.device)
        for batch in torch.split(order, size):
            yield data[batch]


def _check_energy(energy: float, first: float, iteration: int) -> None:
    if iteration == 1 and math.isfinite(energy):
        return
    # Written so that NaN fails too.
    if not abs(energy) <= _EXPLODED * max(1.0, abs(first)):
        raise NumericalFailure(
            f"training diverged at iteration {iteration} (energy {energy:.3g}): lower the learning rate, or train with "
            "SAFE_BNN"
        )


def _posterior(mean: Tensor, std: Tensor) -> MeanFieldGaussian:
    if not bool(torch.isfinite(mean).all() & torch.isfinite(std).all() & (std > 0).all()):
        raise NumericalFailure("training diverged at the last iteration: lower the learning rate")
    return MeanFieldGaussian(mean, std)


def _check(network: Network, data: Tensor, start: MeanFieldGaussian, config: BayesByBackprop) -> None:
    network.check_data(data)
    if start.mean.shape != (network.parameter_count,):
        raise InvalidInput(
            f"start has shape {tuple(start.mean.shape)}: this network needs {network.parameter_count} parameters"
        )
    if config.batch_size > len(data):
        raise InvalidInput(f"batch_size is {config.batch_size} for {len(data)} rows: pass at most as many")
