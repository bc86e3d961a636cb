"""Small networks for tests, and their dense matrices, computed from Jacobians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from ml.models.mlp import MLP
from ml.models.network import Convolution, Layer, Network, dense_layers, pooled
from ml.models.network_energy import NetworkEnergy

TINY = MLP(dimensions=3, hidden=4, classes=3, prior_std=0.5)


@dataclass(frozen=True)
class OneLayer(Network):
    """Network with logits linear in θ: its energy is convex, and its Gauss-Newton matrix is the Hessian."""

    prior_std: float = 0.5

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return dense_layers(3, 4)


@dataclass(frozen=True)
class SmallConvolutional(Network):
    """6×6 pixels -> 2 maps of 4×4, pooled to 2×2 -> 3 classes: 47 parameters."""

    prior_std: float = 0.15

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, 6, 6)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Convolution(1, 2, pooled("relu"), kernel=3), *dense_layers(8, 3))


def labelled_rows(network: Network, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, math.prod(network.input_shape), generator=generator, dtype=torch.float64)
    y = torch.randint(network.layers[-1].outputs, (n, 1), generator=generator)
    return torch.cat([x, y.double()], 1)


def learnable_rows(network: Network, n: int, seed: int = 0) -> Tensor:
    """Return rows with labels drawn from the probabilities of a random network of this kind."""
    data = labelled_rows(network, n, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    chances = network.outputs(2 * random_theta(network, seed + 2), data).softmax(1)
    data[:, -1] = torch.multinomial(chances, 1, generator=generator).flatten().double()
    return data


def random_theta(network: Network, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randn(network.parameter_count, generator=generator, dtype=torch.float64)


def dense_gauss_newton(network: Network, theta: Tensor, data: Tensor) -> Tensor:
    """Return Σ_i J_iᵀ (diag p_i - p_i p_iᵀ) J_i, row by row."""
    total = torch.zeros(len(theta), len(theta), dtype=theta.dtype)
    for row in data.split(1):
        jacobian = jacrev(lambda at, row=row: network.outputs(at, row).squeeze(0))(theta)
        p = network.outputs(theta, row).softmax(1).squeeze(0)
        total += jacobian.T @ (p.diag() - p.outer(p)) @ jacobian
    return total


def minimised(energy: NetworkEnergy, rows: Tensor) -> Tensor:
    """Return the drift to the minimum of F over these rows, from Δ = 0 by torch's own optimiser."""
    drift = torch.zeros_like(energy.draws[0]).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [drift], max_iter=1000, tolerance_grad=1e-10, tolerance_change=0, history_size=50, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        at = drift.detach()
        drift.grad = energy.gradient(at, rows)
        return torch.tensor(energy.misfit(at, rows) + energy.prior_energy(at), dtype=torch.float64)

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return drift.detach().clone()
