"""Baseline: forgetting as in the paper (S. Fu, F. He, Y. Xu, D. Tao, *Bayesian Inference Forgetting*).

One step for each small group S' of the forgotten rows, with S the rows still present before that group is removed:

    variational    λ⁻ = λ + H⁻¹ Σ_{z∈S'} ∇h(λ, z)                     H = ∇²F(λ, S), in λ = (μ, σ)
    sample sets    θ_t⁻ = θ_t - I,  I = -(E ∇² log p(θ, S))⁻¹ Σ_{z∈S'} E ∇ log p(z | θ)

No step uses the gradient on the retained rows, so errors of the inverse and of the expansion stay and add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_rows, retained_rows_of_samples
from ml.models.family import Family
from ml.models.likelihood import Likelihood
from ml.models.potential import ROWS_AT_ONCE, Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve, solve_neumann


class DifferentiableFamily(Family, Protocol):
    """Family whose energy autograd can differentiate."""

    def energy(self, flat: Tensor, data: Tensor) -> Tensor:
        """Return F at the λ of that `flat()`, a scalar that is twice differentiable by autograd."""


@dataclass(frozen=True)
class PaperRecipe:
    """Settings of the paper's mixture experiment (its section 7.1.1).

    `solver="neumann"` is the paper's recursion of `num_terms` products with scale 1/n', n' the number of rows present,
    so it converges only while every curvature is below 2n'. "cholesky" uses the exact inverse instead. `num_samples` of
    the stored samples, drawn again for each group, estimate the expectations.
    """

    group_size: int = 4
    solver: Literal["neumann", "cholesky"] = "neumann"
    num_terms: int = 32
    num_samples: int = 5

    def __post_init__(self) -> None:
        if self.solver not in ("neumann", "cholesky"):
            raise InvalidInput(f"solver is {self.solver!r}: choose 'neumann' or 'cholesky'")
        if min(self.group_size, self.num_terms, self.num_samples) < 1:
            raise InvalidInput("group_size, num_terms and num_samples must be positive: pass at least 1 for each")


PAPER_RECIPE = PaperRecipe()


def forget_variational(
    family: DifferentiableFamily,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    recipe: PaperRecipe = PAPER_RECIPE,
) -> MeanFieldGaussian:
    """Remove rows by the paper's variational inference forgetting, in the order of `forgotten`.

    As in the paper, the recursion multiplies by H through automatic differentiation, ∂/∂λ(∂F/∂λ · v). The graph of
    ∂F/∂λ over every row present is built once per group, so that a product is one backward pass through it. The
    gradient of the group, and H for "cholesky", are the family's closed forms.
    """
    family.check_data(data)
    family.check_posterior(posterior)
    family.check_data(retained_rows(data, forgotten))
    for present, group in _groups(data, forgotten, recipe.group_size):
        posterior = _variational_step(family, posterior, present, group, recipe)
    return posterior


def forget_samples(
    likelihood: Likelihood,
    samples: Tensor,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: PaperRecipe = PAPER_RECIPE,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Tensor:
    """Remove rows by the paper's MCMC forgetting, in the order of `forgotten`: all rows of `samples` shift equally.

    The stored samples represent the posterior. (The authors' program continues its chain meanwhile, on data that still
    contain the forgotten rows.)
    """
    retained_rows_of_samples(likelihood, samples, data, forgotten)
    for present, group in _groups(data, forgotten, recipe.group_size):
        drawn = samples[torch.randperm(len(samples), generator=generator)[: recipe.num_samples].to(samples.device)]
        vector = Potential(likelihood, group, False, rows_at_once).mean_gradient(drawn)
        samples = samples + _drift(Potential(likelihood, present, True, rows_at_once), drawn, vector, recipe)
    return samples


def _variational_step(
    family: DifferentiableFamily, posterior: MeanFieldGaussian, present: Tensor, group: Tensor, recipe: PaperRecipe
) -> MeanFieldGaussian:
    vector = family.group_gradient(posterior, group)
    if recipe.solver == "cholesky":
        solution = solve(family.expand(posterior, present).hessian, vector)
    else:
        solution = solve_neumann(_product(family, posterior, present), vector, recipe.num_terms, 1 / len(present))
    after = posterior.flat() + solution.x
    if not bool((after.chunk(2)[1] > 0).all()):
        raise NumericalFailure("the step makes a standard deviation negative: forget in smaller groups")
    return posterior.with_flat(after)


def _product(family: DifferentiableFamily, posterior: MeanFieldGaussian, present: Tensor) -> Callable[[Tensor], Tensor]:
    flat = posterior.flat().requires_grad_()
    (gradient,) = torch.autograd.grad(family.energy(flat, present), flat, create_graph=True)
    return lambda direction: torch.autograd.grad(gradient, flat, direction, retain_graph=True)[0]


def _drift(potential: Potential, drawn: Tensor, vector: Tensor, recipe: PaperRecipe) -> Tensor:
    """Return -I = (E ∇²U)⁻¹v."""
    if recipe.solver == "cholesky":
        return solve(potential.mean_hessian(drawn), vector).x
    scale = 1 / len(potential.data)
    return solve_neumann(lambda direction: potential.mean_product(drawn, direction), vector, recipe.num_terms, scale).x


def _groups(data: Tensor, forgotten: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows present before each group is removed, and the rows of the group."""
    present = torch.ones(len(data), dtype=torch.bool, device=data.device)
    for group in torch.split(forgotten, size):
        yield data[present], data[group]
        present[group] = False
