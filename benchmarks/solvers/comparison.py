"""How near four ways to solve A x = g come to the answer, for each product with A.

    A = (n/b) G + 1/s² + τP        G the Gauss-Newton matrix of b sampled rows, s the prior's std, P = 1/σ² the
                                   precision of the posterior, τ the damping
    g = Σ_{z∈S'} ∇h(z)             over 64 rows to forget

which is the system that forgetting on networks solves: τ = 0 is the plain influence, the other τ is where its trust
region starts. The error is ‖x - x*‖_A / ‖x*‖_A. It is 1 for x = 0, so above 1 is worse than no answer.

x* is a Cholesky solution where A can be stored, and else that of a long run of conjugate gradients. How exact it is, is
known either way: A - D is positive semi-definite for the diagonal D = 1/s² + τP, so with r = g - A x*

    ‖x* - A⁻¹g‖_A = (rᵀA⁻¹r)^½ ≤ (rᵀD⁻¹r)^½
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from ml.baselines.paper_network import PAPER_VI
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.network import OURS
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.regression import check_count
from ml.numerics.gauss_newton import Product
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve, solve_conjugate_gradients, solve_neumann

CASES = ("mlp", "lenet")
SOLVERS = ("neumann-paper", "neumann-safe", "cg", "ours")
DAMPINGS = (0.0, OURS.damping)
FORGOTTEN = 64
SAMPLED_ROWS = 2048
"""Or all that are retained, where these are fewer."""
POWER_PRODUCTS = 5
"""To find λ_max for the safe c: from g, which lies where the curvature is, they come within a few per cent."""
MOST_STORED = 5_000
"""Parameters; above, A is not formed."""
TRUTH_TOLERANCE = 1e-6
TRUTH_PRODUCTS = 400

MLP_TRAINING = replace(SAFE_BNN, iterations=2_000, decay_every=500)

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class SolverPath:
    """After products[i] products with A: ‖x - x*‖_A / ‖x*‖_A, and ‖g - Ax‖/‖g‖. What is measured is not counted."""

    solver: str
    products: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)
    diverged: bool = False
    """The solver gave up after the last of `products`."""

    def error_at(self, products: int) -> float | None:
        """None where there is no answer: before the first, and after divergence. A solver that is done stays."""
        done = bool(self.products) and products > self.products[-1] and not self.diverged
        return self.errors[-1] if done else dict(zip(self.products, self.errors, strict=True)).get(products)

    def products_to(self, error: float) -> int | None:
        """How many it takes to an error so small, if it gets there."""
        return next((k for k, e in zip(self.products, self.errors, strict=True) if e <= error), None)

    def products_to_residual(self, residual: float) -> int | None:
        return next((k for k, r in zip(self.products, self.residuals, strict=True) if r <= residual), None)


@dataclass(frozen=True)
class SolverTable:
    damping: float
    truth: str
    truth_error: float
    """No more than this, as a part of ‖x*‖_A."""
    largest_curvature: float
    """As POWER_PRODUCTS find it. The paper's c times it is `paper_step`, which must be below 2."""
    paper_step: float
    paths: dict[str, SolverPath]


@dataclass(frozen=True)
class SolverComparison:
    case: str
    parameters: int
    n: int
    sampled_rows: int
    forgotten: int
    tables: list[SolverTable]

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> SolverComparison:
        """Back from `dataclasses.asdict`."""
        return cls(**{**stored, "tables": [_table_from_dict(table) for table in stored["tables"]]})


def _table_from_dict(stored: dict[str, Any]) -> SolverTable:
    return SolverTable(**{**stored, "paths": {name: SolverPath(**path) for name, path in stored["paths"].items()}})


def compare_mlp(products: int = 60, seed: int = 1, on_progress: OnProgress | None = None) -> SolverComparison:
    """Train a perceptron on the digits, which takes seconds, then solve."""
    network, data, report = MLP(64, 32, 10), digits()[0], on_progress or (lambda _stage, _fraction: None)
    generator, total = torch.Generator().manual_seed(seed), MLP_TRAINING.iterations

    def on_step(iteration: int, _energy: float) -> None:
        report("training", iteration / total)

    posterior = train_network(network, data, network.initial(seed), MLP_TRAINING, generator, on_step).posterior
    return compare_network("mlp", network, posterior, data, products, seed, on_progress)


def compare_lenet(
    posterior: MeanFieldGaussian,
    data: Tensor,
    products: int = 60,
    seed: int = 1,
    on_progress: OnProgress | None = None,
) -> SolverComparison:
    return compare_network("lenet", LeNet5(), posterior, data, products, seed, on_progress)


def compare_network(
    case: str,
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    products: int,
    seed: int,
    on_progress: OnProgress | None = None,
) -> SolverComparison:
    """All solvers on the system of one posterior, a table for each damping. The seed decides which rows are sampled."""
    check_count("products", products, least=POWER_PRODUCTS + 1)
    network.check_data(data)
    if posterior.mean.shape != (network.parameter_count,):
        raise InvalidInput(
            f"posterior has shape {tuple(posterior.mean.shape)}: this network has {network.parameter_count} parameters"
        )
    forgotten, retained = _parted(data)
    order = torch.randperm(len(retained), generator=torch.Generator().manual_seed(seed))
    sampled = retained[order[:SAMPLED_ROWS]]
    energy = NetworkEnergy(network, data, frozen_draws(posterior, OURS.draws, seed))
    curvature = energy.curvature(sampled, len(retained) / len(sampled))
    gradient = energy.misfit_gradient(torch.zeros_like(posterior.mean), forgotten)
    matrix = _matrix(curvature, gradient, on_progress) if len(gradient) <= MOST_STORED else None
    plain = _System(curvature, matrix, gradient, posterior.std**-2, network.prior_std**-2, len(retained))
    tables = [_table(replace(plain, damping=damping), products, on_progress) for damping in DAMPINGS]
    return SolverComparison(case, network.parameter_count, len(data), len(sampled), len(forgotten), tables)


@dataclass(frozen=True, eq=False)
class _System:
    curvature: Product
    """v ↦ ((n/b) G + 1/s²) v"""
    matrix: Tensor | None
    """The same, where it can be stored."""
    vector: Tensor
    precision: Tensor
    prior: float
    n: int
    damping: float = 0.0

    def product(self, vector: Tensor) -> Tensor:
        curved = self.curvature(vector) if self.matrix is None else self.matrix @ vector
        return curved + self.damping * self.precision * vector

    @property
    def least(self) -> Tensor:
        """D, the diagonal that A exceeds."""
        return self.prior + self.damping * self.precision


@dataclass(frozen=True, eq=False)
class _Truth:
    x: Tensor
    image: Tensor  # A x
    solver: str

    @property
    def size(self) -> float:
        """‖x*‖_A."""
        return math.sqrt(float(self.x.dot(self.image)))

    def error(self, system: _System) -> float:
        residual = system.vector - self.image
        return math.sqrt(float((residual.square() / system.least).sum())) / self.size


def _table(system: _System, products: int, on_progress: OnProgress | None) -> SolverTable:
    report = on_progress or (lambda _stage, _fraction: None)
    report(f"damping {system.damping:g}: the truth", 0.0)
    truth = _truth(system)
    largest = largest_curvature(system.product, system.vector)
    step = PAPER_VI.scale / system.n
    paths = {}
    for place, solver in enumerate(SOLVERS, 1):
        paths[solver] = _path(solver, system, truth, products, step if solver == "neumann-paper" else 1 / largest)
        report(f"damping {system.damping:g}: {solver}", place / len(SOLVERS))
    return SolverTable(system.damping, truth.solver, truth.error(system), largest, step * largest, paths)


def _truth(system: _System) -> _Truth:
    """A long run preconditions by D: D⁻¹A is I plus a matrix of the rank of G, so what the rows miss is one eigenvalue.

    By P that is so with damping only. Undamped, on LeNet-5, 400 products bound the error by 0.24 with P, 0.003 with D.
    """
    if system.matrix is not None:
        found = solve(system.matrix + torch.diag(system.damping * system.precision), system.vector)
    else:
        found = solve_conjugate_gradients(
            system.product, system.vector, TRUTH_TOLERANCE, TRUTH_PRODUCTS, system.least.expand_as(system.vector)
        )
    return _Truth(found.x, system.product(found.x), found.solver)


def largest_curvature(product: Product, start: Tensor, products: int = POWER_PRODUCTS) -> float:
    """λ_max from below, by power iteration: ‖Av‖ for a unit vector v that turns towards its eigenvector."""
    v, size = start, float(start.norm())
    for _ in range(products):
        v = product(v / size)
        size = float(v.norm())
    return size


def _path(solver: str, system: _System, truth: _Truth, products: int, scale: float) -> SolverPath:
    path = SolverPath(solver)
    spent = POWER_PRODUCTS if solver == "neumann-safe" else 0
    of_vector = float(system.vector.norm())

    def record(x: Tensor) -> None:
        gap = x - truth.x
        image = system.product(gap)
        path.products.append(spent + len(path.products) + 1)
        path.errors.append(math.sqrt(max(0.0, float(gap.dot(image)))) / truth.size)
        path.residuals.append(float((system.vector - truth.image - image).norm()) / of_vector)

    if solver in ("cg", "ours"):
        diagonal = system.precision if solver == "ours" else None
        # So small that the path ends at `products`, or in rounding.
        solve_conjugate_gradients(system.product, system.vector, 1e-15, products, diagonal, record)
        return path
    try:
        solve_neumann(system.product, system.vector, products - spent, scale, record)
    except NumericalFailure:
        return replace(path, diverged=True)
    return path


def _parted(data: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the first rows of class 0, which go, and of all others."""
    goes = torch.zeros(len(data), dtype=torch.bool, device=data.device)
    goes[torch.nonzero(data[:, -1] == 0).flatten()[:FORGOTTEN]] = True
    if int(goes.sum()) < FORGOTTEN or bool(goes.all()):
        raise InvalidInput(f"data must hold {FORGOTTEN} rows of class 0 to forget, and others: pass more rows")
    return torch.nonzero(goes).flatten(), torch.nonzero(~goes).flatten()


def _matrix(product: Product, like: Tensor, on_progress: OnProgress | None) -> Tensor:
    matrix = like.new_zeros(len(like), len(like))
    for place, unit in enumerate(torch.eye(len(like), dtype=like.dtype, device=like.device)):
        matrix[place] = product(unit)
        if on_progress is not None:
            on_progress("storing the matrix", (place + 1) / len(like))
    return (matrix + matrix.T) / 2
