"""Compared with the dense matrix of Jacobians, and with the Hessian where the two are equal."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.func import hessian

from ml.models.lenet import LeNet5
from ml.models.network import Network
from ml.numerics.gauss_newton import Product, gauss_newton
from ml.solvers import solve_conjugate_gradients
from tests.ml.networks import TINY, OneLayer, dense_gauss_newton, labelled_rows, random_theta


def product_of(network: Network, theta: Tensor, *parts: Tensor) -> Product:
    return gauss_newton([functools.partial(_outputs, network, rows) for rows in parts], theta)


def _outputs(network: Network, rows: Tensor, theta: Tensor) -> Tensor:
    return network.outputs(theta, rows)


def matrix(product: Product, size: int) -> Tensor:
    return torch.stack([product(axis) for axis in torch.eye(size, dtype=torch.float64)])


def log_loss_hessian(network: Network, theta: Tensor, rows: Tensor) -> Tensor:
    matrix: Tensor = hessian(lambda at: -network.log_likelihood(at, rows).sum())(theta)
    return matrix


def test_the_products_are_those_of_the_dense_matrix() -> None:
    theta, data = random_theta(TINY), labelled_rows(TINY, 20)
    computed = matrix(product_of(TINY, theta, data), len(theta))
    assert torch.allclose(computed, dense_gauss_newton(TINY, theta, data), rtol=1e-11, atol=1e-11)


def test_it_is_the_hessian_where_the_logits_are_linear() -> None:
    network = OneLayer()
    theta, data = random_theta(network), labelled_rows(network, 20)
    computed = matrix(product_of(network, theta, data), len(theta))
    assert torch.allclose(computed, log_loss_hessian(network, theta, data), rtol=1e-11, atol=1e-11)


def test_it_is_positive_semi_definite_where_the_hessian_is_not() -> None:
    theta, data = random_theta(TINY, seed=1), labelled_rows(TINY, 200, seed=1)
    assert float(torch.linalg.eigvalsh(log_loss_hessian(TINY, theta, data)).min()) < -1.0
    computed = matrix(product_of(TINY, theta, data), len(theta))
    eigenvalues = torch.linalg.eigvalsh(computed)
    assert float(eigenvalues.min()) >= -1e-12 * float(eigenvalues.max())
    assert torch.allclose(computed, computed.T, rtol=0, atol=1e-12 * float(eigenvalues.max()))


def test_several_output_maps_add_up() -> None:
    theta, data = random_theta(TINY), labelled_rows(TINY, 23)
    vector = torch.linspace(-1, 1, len(theta), dtype=torch.float64)
    whole, parts = product_of(TINY, theta, data), product_of(TINY, theta, data[:4], data[4:])
    assert torch.allclose(parts(vector), whole(vector), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(product_of(TINY, theta, data[:4])(vector), whole(vector), rtol=1e-3)


def test_a_product_can_be_used_again_and_leaves_its_vector_alone() -> None:
    theta, data = random_theta(TINY), labelled_rows(TINY, 20)
    product, vector = product_of(TINY, theta, data), torch.ones(len(theta), dtype=torch.float64)
    assert torch.equal(product(vector), product(vector))
    assert torch.equal(vector, torch.ones_like(vector))


def test_conjugate_gradients_invert_it_with_a_prior() -> None:
    theta, data = random_theta(TINY), labelled_rows(TINY, 50)
    product, vector, prior = product_of(TINY, theta, data), torch.ones_like(theta), TINY.prior_std**-2
    solution = solve_conjugate_gradients(lambda v: product(v) + prior * v, vector, 1e-12, 200)
    dense = dense_gauss_newton(TINY, theta, data) + prior * torch.eye(len(theta), dtype=torch.float64)
    assert torch.allclose(solution.x, torch.linalg.solve(dense, vector), rtol=1e-8, atol=1e-10)


def test_convolutions_in_single_precision() -> None:
    """Symmetric, positive, and equal to double precision, on a network too large to form the matrix."""
    network = LeNet5()
    theta, data = network.initial(seed=0).mean, labelled_rows(network, 4)
    first, second = torch.randn(2, len(theta), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    product = product_of(network, theta, data)
    image = product(first)
    assert float(second.dot(image)) == pytest.approx(float(first.dot(product(second))), rel=1e-10)
    assert float(first.dot(image)) > 0
    single = product_of(network, theta.float(), data.float())(first.float())
    assert single.dtype == torch.float32
    assert float((single.double() - image).norm()) < 1e-5 * float(image.norm())
