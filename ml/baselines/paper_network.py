"""Baseline: forgetting on networks as in the paper (its section 7.2).

One step for each group S' of 64 of the forgotten rows, with S the n' rows present before that group is removed:

    variational    λ⁻ = λ + H⁻¹ Σ_{z∈S'} ∇h(λ, z)                    H = ∇²F(λ, S), in λ = (μ, σ)
    sample sets    θ_t⁻ = θ_t + H⁻¹ Σ_{z∈S'} E ∇h(θ, z)              H = E ∇²U(θ, S)

H⁻¹v is the recursion x_j = v + (I - cH) x_{j-1}, 64 times, with c a constant over n'. H is never the whole Hessian:
each product uses a fresh minibatch of 128 rows and fresh noise, local in the variational case. (The paper averages
five draws per product, at five times the cost. Sixty-four products average anyway; times measured here flatter it.)

If a posterior is narrow in some direction, the recursion diverges with the paper's c. Then c is halved, for later
groups too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.forgetting.retained import retained_rows, retained_rows_of_samples
from ml.inference.bayes_by_backprop import outputs_with_activation_noise
from ml.models.checks import check_count, check_scale
from ml.models.network import Network
from ml.posteriors.mean_field import MeanFieldGaussian

_DIVERGED = 10.0  # times the largest norm of a recursion that converges
_MAX_HALVINGS = 12

Misfit = Callable[[Tensor, Tensor], Tensor]
"""Maps γ and rows to Σ h(γ, z), with fresh noise at each call."""
Prior = Callable[[Tensor], Tensor]
OnGroup = Callable[[int, int], None]


@dataclass(frozen=True)
class PaperNetworkRecipe:
    """Settings of the paper's network experiments. `scale` is c·n'."""

    scale: float
    group_size: int = 64
    num_terms: int = 64
    num_draws: int = 5
    batch_size: int = 128

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        for name in ("group_size", "num_terms", "num_draws", "batch_size"):
            check_count(name, getattr(self, name))


PAPER_VI = PaperNetworkRecipe(scale=0.1)
PAPER_SGLD = PaperNetworkRecipe(scale=0.005)
PAPER_SGHMC = PaperNetworkRecipe(scale=0.05)


@dataclass(frozen=True, eq=False)
class PaperNetworkResult:
    posterior: MeanFieldGaussian
    scale: float  # c·n' at the end


@dataclass(frozen=True, eq=False)
class PaperSamplesResult:
    samples: Tensor
    scale: float


def paper_forget_network(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: PaperNetworkRecipe = PAPER_VI,
    on_group: OnGroup | None = None,
) -> PaperNetworkResult:
    """Remove rows by the paper's variational inference forgetting, in the order of `forgotten`."""
    network.check_posterior(posterior)
    network.check_data(data)
    network.check_data(retained_rows(data, forgotten))

    def misfit(flat: Tensor, rows: Tensor) -> Tensor:
        mean, std = flat.chunk(2)
        outputs = outputs_with_activation_noise(network, mean, std, rows, generator)
        return -network.score(outputs, rows[:, -1]).sum()

    def prior(flat: Tensor) -> Tensor:
        return flat.square().sum() / (2 * network.prior_std**2) - flat.chunk(2)[1].log().sum()

    flat, scale = _forget(misfit, prior, posterior.flat(), data, forgotten, generator, recipe, on_group)
    if not bool((flat.chunk(2)[1] > 0).all()):
        raise NumericalFailure("the paper's steps make a standard deviation negative: forget in smaller groups")
    return PaperNetworkResult(posterior.with_flat(flat), scale)


def paper_forget_network_samples(
    network: Network,
    samples: Tensor,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: PaperNetworkRecipe,
    on_group: OnGroup | None = None,
) -> PaperSamplesResult:
    """Remove rows by the paper's MCMC forgetting, in the order of `forgotten`: all `samples` shift equally."""
    retained_rows_of_samples(network, samples, data, forgotten)

    def theta(drift: Tensor) -> Tensor:
        chosen = int(torch.randint(len(samples), (), generator=generator, device=generator.device))
        return samples[chosen].to(drift.dtype) + drift

    def misfit(drift: Tensor, rows: Tensor) -> Tensor:
        return -network.log_likelihood(theta(drift), rows).sum()

    def prior(drift: Tensor) -> Tensor:
        return -network.log_prior(theta(drift))

    drift, scale = _forget(misfit, prior, torch.zeros_like(samples[0]), data, forgotten, generator, recipe, on_group)
    return PaperSamplesResult(samples + drift, scale)


def _forget(
    misfit: Misfit,
    prior: Prior,
    at: Tensor,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: PaperNetworkRecipe,
    on_group: OnGroup | None,
) -> tuple[Tensor, float]:
    """Return γ after all groups, and the last scale."""
    present, scale = torch.ones(len(data), dtype=torch.bool, device=data.device), recipe.scale
    groups = torch.split(forgotten, recipe.group_size)
    for number, group in enumerate(groups, 1):
        rows = torch.nonzero(present).flatten()
        step = _Step(misfit, prior, at.to(data.dtype), data, rows, group, generator, recipe)
        drift, scale = step.solve(scale)
        at, present[group] = at + drift.to(at.dtype), False
        if on_group is not None:
            on_group(number, len(groups))
    return at, scale


@dataclass(frozen=True, eq=False)
class _Step:
    """Step for one group, computed in the precision of the data."""

    misfit: Misfit
    prior: Prior
    at: Tensor
    data: Tensor
    present: Tensor
    group: Tensor
    generator: torch.Generator
    recipe: PaperNetworkRecipe

    def solve(self, scale: float) -> tuple[Tensor, float]:
        """Return H⁻¹v and the scale with which the recursion converged."""
        vector = self.group_gradient()
        for _ in range(_MAX_HALVINGS):
            try:
                solution = _recursion(self.product, vector, self.recipe.num_terms, scale / len(self.present))
            except NumericalFailure:
                scale /= 2
                continue
            return solution, scale
        raise NumericalFailure(f"the paper's recursion diverges even with c = {scale:.3g}/n': train to convergence")

    def group_gradient(self) -> Tensor:
        gamma, total = self.at.clone().requires_grad_(), torch.zeros_like(self.at)
        for _ in range(self.recipe.num_draws):
            total += torch.autograd.grad(self.misfit(gamma, self.data[self.group]), gamma)[0] / self.recipe.num_draws
        return total

    def product(self, direction: Tensor) -> Tensor:
        """Return an unbiased estimate of H times a vector, by differentiating twice."""
        gamma, size, device = self.at.clone().requires_grad_(), self.recipe.batch_size, self.generator.device
        batch = torch.randint(len(self.present), (size,), generator=self.generator, device=device)
        rows = self.data[self.present[batch.to(self.present.device)]]
        energy = len(self.present) / size * self.misfit(gamma, rows) + self.prior(gamma)
        slope = torch.autograd.grad(energy, gamma, create_graph=True)[0]
        return torch.autograd.grad(slope, gamma, direction)[0]


def _recursion(product: Callable[[Tensor], Tensor], vector: Tensor, num_terms: int, scale: float) -> Tensor:
    """Return c·x_J. Products of fresh minibatches give no residual, so the norm of x reveals divergence."""
    x, largest = vector, _DIVERGED * num_terms * float(vector.norm())
    for term in range(1, num_terms + 1):
        x = vector + x - scale * product(x)
        # In this form NaN fails too.
        if not float(x.norm()) <= largest:
            raise NumericalFailure(f"the paper's recursion diverges at term {term} of {num_terms}")
    return scale * x
