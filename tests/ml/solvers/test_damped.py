import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers import DampedSystem, solve, solve_conjugate_gradients


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Counted:
    """A positive definite matrix with a diagonal beside it, and how often somebody multiplied by the matrix."""

    def __init__(self, size: int) -> None:
        root = drawn(size, size)
        self.matrix = root @ root.T / size
        self.vector, self.diagonal = drawn(size, seed=1), 0.5 + drawn(size, seed=2).square()
        self.products = 0

    def __call__(self, vector: Tensor) -> Tensor:
        self.products += 1
        return self.matrix @ vector

    def damped(self, damping: float) -> Tensor:
        return self.matrix + damping * self.diagonal.diag()


@pytest.mark.parametrize("damping", [100.0, 1.0, 1e-2])
def test_it_solves_for_every_damping(damping: float) -> None:
    counted = Counted(50)
    found = DampedSystem(counted, counted.vector, counted.diagonal).solve(damping, 1e-9, 50)
    truth = solve(counted.damped(damping), counted.vector).x
    assert found.converged
    assert torch.allclose(found.x, truth, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("products", [3, 9])
def test_its_x_is_that_of_preconditioned_conjugate_gradients(products: int) -> None:
    counted = Counted(50)
    found = DampedSystem(counted, counted.vector, counted.diagonal).solve(0.3, 1e-12, products)
    plain = solve_conjugate_gradients(
        lambda x: counted.damped(0.3) @ x, counted.vector, 1e-12, products, counted.diagonal
    )
    assert torch.allclose(found.x, plain.x, rtol=1e-8, atol=1e-10)
    # Known without a product, and the truth.
    assert found.residual == pytest.approx(plain.residual, rel=1e-6)
    assert not found.converged


def test_dampings_share_their_products() -> None:
    counted = Counted(60)
    system = DampedSystem(counted, counted.vector, counted.diagonal)
    hardest = system.solve(0.05, 1e-3, 60).iterations
    easier = system.solve(5.0, 1e-3, 60)
    assert easier.iterations == hardest == counted.products == system.products
    alone = DampedSystem(Counted(60), counted.vector, counted.diagonal).solve(5.0, 1e-3, 60)
    assert alone.iterations < hardest


def test_what_is_unsolved_is_orthogonal_to_the_solution() -> None:
    counted = Counted(50)
    found = DampedSystem(counted, counted.vector, counted.diagonal).solve(0.1, 1e-12, 5)
    left = counted.vector - counted.damped(0.1) @ found.x
    assert abs(float(left.dot(found.x))) < 1e-10 * float(left.norm() * found.x.norm())


def test_a_space_without_a_way_out_holds_the_answer() -> None:
    curvature = torch.tensor([1.0, 4.0], dtype=torch.float64).repeat(3)
    ones = torch.ones(6, dtype=torch.float64)
    found = DampedSystem(lambda vector: curvature * vector, ones, ones).solve(1.0, 1e-15, 6)
    assert (found.iterations, found.residual) == (2, 0.0)
    assert torch.allclose(found.x, ones / (curvature + 1))


def test_negative_curvature_is_a_numerical_failure() -> None:
    curvature, ones = torch.tensor([1.0, -3.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    system = DampedSystem(lambda vector: curvature * vector, ones, ones)
    with pytest.raises(NumericalFailure, match="damp more"):
        system.solve(1.0, 1e-6, 2)
    assert torch.allclose(system.solve(4.0, 1e-6, 2).x, ones / (curvature + 4))


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_nothing_to_solve_for(bad: float) -> None:
    ones = torch.ones(2, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="nothing to solve"):
        DampedSystem(lambda vector: vector, ones * bad, ones)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_damping_diagonal_is_positive(bad: float) -> None:
    ones = torch.ones(2, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="not positive"):
        DampedSystem(lambda vector: vector, ones, ones * bad)
