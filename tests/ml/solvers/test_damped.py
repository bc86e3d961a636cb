import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers import DampedSystem, solve, solve_conjugate_gradients


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class CountingMatrix:
    """Positive definite matrix, vector and diagonal, with a count of the products."""

    def __init__(self, size: int) -> None:
        root = random(size, size)
        self.matrix = root @ root.T / size
        self.vector, self.diagonal = random(size, seed=1), 0.5 + random(size, seed=2).square()
        self.products = 0

    def __call__(self, vector: Tensor) -> Tensor:
        self.products += 1
        return self.matrix @ vector

    def damped(self, damping: float) -> Tensor:
        return self.matrix + damping * self.diagonal.diag()


@pytest.mark.parametrize("damping", [100.0, 1.0, 1e-2])
def test_it_solves_for_every_damping(damping: float) -> None:
    system = CountingMatrix(50)
    solution = DampedSystem(system, system.vector, system.diagonal).solve(damping, 1e-9, 50)
    truth = solve(system.damped(damping), system.vector).x
    assert solution.converged
    assert torch.allclose(solution.x, truth, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("products", [3, 9])
def test_its_x_is_that_of_preconditioned_conjugate_gradients(products: int) -> None:
    system = CountingMatrix(50)
    solution = DampedSystem(system, system.vector, system.diagonal).solve(0.3, 1e-12, products)
    plain = solve_conjugate_gradients(lambda x: system.damped(0.3) @ x, system.vector, 1e-12, products, system.diagonal)
    assert torch.allclose(solution.x, plain.x, rtol=1e-8, atol=1e-10)
    # Computed without a product, and correct.
    assert solution.residual == pytest.approx(plain.residual, rel=1e-6)
    assert not solution.converged


def test_dampings_share_their_products() -> None:
    system = CountingMatrix(60)
    damped_system = DampedSystem(system, system.vector, system.diagonal)
    hardest = damped_system.solve(0.05, 1e-3, 60).iterations
    easier = damped_system.solve(5.0, 1e-3, 60)
    assert easier.iterations == hardest == system.products == damped_system.products
    alone = DampedSystem(CountingMatrix(60), system.vector, system.diagonal).solve(5.0, 1e-3, 60)
    assert alone.iterations < hardest


def test_the_residual_is_orthogonal_to_the_solution() -> None:
    system = CountingMatrix(50)
    solution = DampedSystem(system, system.vector, system.diagonal).solve(0.1, 1e-12, 5)
    residual = system.vector - system.damped(0.1) @ solution.x
    assert abs(float(residual.dot(solution.x))) < 1e-10 * float(residual.norm() * solution.x.norm())


def test_an_invariant_space_holds_the_solution() -> None:
    curvature = torch.tensor([1.0, 4.0], dtype=torch.float64).repeat(3)
    ones = torch.ones(6, dtype=torch.float64)
    solution = DampedSystem(lambda vector: curvature * vector, ones, ones).solve(1.0, 1e-15, 6)
    assert (solution.iterations, solution.residual) == (2, 0.0)
    assert torch.allclose(solution.x, ones / (curvature + 1))


def test_negative_curvature_is_a_numerical_failure() -> None:
    curvature, ones = torch.tensor([1.0, -3.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    damped_system = DampedSystem(lambda vector: curvature * vector, ones, ones)
    with pytest.raises(NumericalFailure, match="damp more"):
        damped_system.solve(1.0, 1e-6, 2)
    assert torch.allclose(damped_system.solve(4.0, 1e-6, 2).x, ones / (curvature + 4))


@pytest.mark.parametrize("factor", [0.0, math.nan, math.inf])
def test_nothing_to_solve_for(factor: float) -> None:
    ones = torch.ones(2, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="nothing to solve"):
        DampedSystem(lambda vector: vector, ones * factor, ones)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan])
def test_a_damping_diagonal_is_positive(factor: float) -> None:
    ones = torch.ones(2, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="not positive"):
        DampedSystem(lambda vector: vector, ones, ones * factor)
