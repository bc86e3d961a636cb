"""Training of an ensemble's members: each descends to a mode of its own rows' posterior, from a seed of its own.

A member minimises the potential per row over its n rows,

    U(θ)/n = -(1/|B|) Σ_{i∈B} log p(z_i | θ) + c |θ|²/(2 s² n)        s is the prior's std, B a minibatch

where c is the recipe's share of the prior, with Adam (D. Kingma, J. Ba, 2015) at a rate that falls along a cosine from
`learning_rate` to 0. Start, order of the rows and steps depend on nothing but rows, seed and recipe: on one machine,
training again gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ml.errors import NumericalFailure
from ml.models.network import Network
from ml.posteriors.ensemble import Ensemble, Recipe

OnStep = Callable[[int], None]


def default_prior_share(shards: int) -> float:
    """Return 1/K². 1/K would weigh each row against the prior as in a single network; members that follow their rows
    more closely than that differ more, and gain more from being averaged (`lethe bench shards`)."""
    return float(shards**-2)


def train_ensemble(
    network: Network,
    data: Tensor,
    shard: Tensor,
    recipe: Recipe,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Ensemble:
    """Train a member on each shard, member k from `seed` + k. `on_step` counts the iterations of all members."""
    network.check_data(data)
    members, done = [], 0
    for member in range(int(shard.max()) + 1):
        rows, finished = data[shard == member], done
        report = None if on_step is None else lambda step, finished=finished: on_step(finished + step)
        members.append(train_member(network, rows, seed + member, recipe, report))
        done += recipe.iterations(len(rows))
    return Ensemble(torch.stack(members), seed + torch.arange(len(members)), shard, recipe)


def train_member(network: Network, rows: Tensor, seed: int, recipe: Recipe, on_step: OnStep | None = None) -> Tensor:
    """Return the θ of a member trained on these rows from scratch, in float64; it is computed in their precision."""
    generator = torch.Generator().manual_seed(seed)
    theta = network.initial(seed).mean.to(rows.device, rows.dtype).requires_grad_()
    optimiser = torch.optim.Adam([theta], lr=recipe.learning_rate)
    decay, total = recipe.prior_share / (2 * network.prior_std**2 * len(rows)), recipe.iterations(len(rows))
    for iteration, batch in enumerate(_batches(rows, recipe, generator)):
        optimiser.param_groups[0]["lr"] = recipe.learning_rate * (1 + math.cos(math.pi * iteration / total)) / 2
        potential = decay * theta.square().sum() - network.log_likelihood(theta, batch).mean()
        optimiser.zero_grad()
        potential.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if on_step is not None:
            on_step(iteration + 1)
    trained = theta.detach().double()
    if not bool(torch.isfinite(trained).all()):
        raise NumericalFailure("training of a member diverged: lower the learning rate of the recipe")
    return trained


def predict(network: Network, ensemble: Ensemble, features: Tensor) -> Tensor:
    """Return the probabilities of the classes, averaged over the members: (n, classes). `features` have no label."""
    rows = functional.pad(features, (0, 1))
    with torch.no_grad():
        members = ensemble.members.to(features.dtype)
        return torch.stack([network.outputs(theta, rows).softmax(1) for theta in members]).mean(0)


def _batches(rows: Tensor, recipe: Recipe, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the minibatches of all epochs, each in a new order. Rows that do not fill a batch are left out."""
    size = min(recipe.batch_size, len(rows))
    for _ in range(recipe.epochs):
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        for batch in torch.split(order[: len(rows) // size * size], size):
            yield rows[batch]
