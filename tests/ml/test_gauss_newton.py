"""Against the dense matrix, made from Jacobians; and against the Hessian where the two are the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from ml.curvature import Potential
from ml.errors import InvalidInput
from ml.gauss_newton import Classifier, GaussNewton
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP
from ml.models.network import Layer, Network, dense_layers
from ml.solvers import solve_conjugate_gradients

TINY = MLP(dimensions=3, hidden=4, classes=3, prior_std=0.5)


@dataclass(frozen=True)
class OneLayer(Network):
    prior_std: float = 0.5

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return dense_layers(3, 4)


def scene(network: Network, n: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, columns, generator=generator, dtype=torch.float64)
    y = torch.randint(network.layers[-1].outputs, (n, 1), generator=generator)
    theta = torch.randn(network.parameter_count, generator=generator, dtype=torch.float64)
    return theta, torch.cat([x, y.double()], 1)


def matrix(curvature: GaussNewton, theta: Tensor) -> Tensor:
    return torch.stack([curvature.product(theta, one) for one in torch.eye(len(theta), dtype=theta.dtype)])


def dense(network: Network, theta: Tensor, data: Tensor) -> Tensor:
    total = torch.eye(len(theta), dtype=theta.dtype) / network.prior_std**2
    for row in data.split(1):
        jacobian = jacrev(lambda at, row=row: network.outputs(at, row).squeeze(0))(theta)
        p = network.outputs(theta, row).softmax(1).squeeze(0)
        total += jacobian.T @ (p.diag() - p.outer(p)) @ jacobian
    return total


def test_the_products_are_those_of_the_dense_matrix() -> None:
    classifier: Classifier = TINY
    theta, data = scene(TINY, 20, 3)
    computed = matrix(GaussNewton(classifier, data), theta)
    assert torch.allclose(computed, dense(TINY, theta, data), rtol=1e-11, atol=1e-11)


def test_it_is_the_hessian_where_the_logits_are_linear() -> None:
    theta, data = scene(OneLayer(), 20, 3)
    hessian = Potential(OneLayer(), data).hessian(theta)
    assert torch.allclose(matrix(GaussNewton(OneLayer(), data), theta), hessian, rtol=1e-11, atol=1e-11)


def test_positive_definite_where_the_hessian_is_not() -> None:
    theta, data = scene(TINY, 200, 3, seed=1)
    assert float(torch.linalg.eigvalsh(Potential(TINY, data).hessian(theta)).min()) < -1.0
    lowest = float(torch.linalg.eigvalsh(matrix(GaussNewton(TINY, data), theta)).min())
    assert lowest >= TINY.prior_std**-2 * (1 - 1e-9)


def test_the_row_budget_changes_nothing() -> None:
    theta, data = scene(TINY, 23, 3)
    vector = torch.linspace(-1, 1, len(theta), dtype=torch.float64)
    whole = GaussNewton(TINY, data).product(theta, vector)
    assert torch.allclose(GaussNewton(TINY, data, rows_at_once=4).product(theta, vector), whole, rtol=1e-12, atol=1e-12)
    with pytest.raises(InvalidInput, match="rows_at_once is 0"):
        GaussNewton(TINY, data, rows_at_once=0)


def test_conjugate_gradients_invert_it() -> None:
    theta, data = scene(TINY, 50, 3)
    vector = torch.ones_like(theta)
    curvature = GaussNewton(TINY, data)
    solution = solve_conjugate_gradients(lambda v: curvature.product(theta, v), vector, 1e-12, 200)
    expected = torch.linalg.solve(dense(TINY, theta, data), vector)
    assert torch.allclose(solution.x, expected, rtol=1e-8, atol=1e-10)


def test_convolutions_in_single_precision() -> None:
    """Symmetric, above the prior, and equal to double precision, on a network too large for the matrix."""
    network = LeNet5()
    theta, data = network.initial(seed=0).mean, scene(network, 4, 1024)[1]
    first, second = torch.randn(2, len(theta), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    curvature = GaussNewton(network, data)
    product = curvature.product(theta, first)
    assert float(second.dot(product)) == pytest.approx(float(first.dot(curvature.product(theta, second))), rel=1e-10)
    assert float(first.dot(product)) > float(first.dot(first)) / network.prior_std**2
    single = GaussNewton(network, data.float()).product(theta.float(), first.float())
    assert single.dtype == torch.float32
    assert float((single.double() - product).norm()) < 1e-5 * float(product.norm())
