"""The energy of a network's posterior as one function of a drift Δ: the draws are frozen, so it is the same each time.

    F(Δ) = Σ_i h(Δ, z_i) + f(Δ)        h(Δ, z_i) = -log p(z_i | s_t + Δ),  t = i mod M
                                       f(Δ) = -mean_t log prior(s_t + Δ)

s_1..s_M are draws of the posterior: stored samples, or μ + σ∘ε_t with ε_t frozen. Each row is read by one of them,
always the same: M draws for the price of one pass over the data. Taking a row out takes its h out and changes no other.

The widths are not part of Δ. With few draws a joint energy of (μ, σ) has directions that all of them miss, and a solve
runs away along these; in expectation the widths part from the means, and follow from `fisher_diagonal` in closed form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import vmap

from ml.models.frozen_noise import check_draws, frozen_noise
from ml.models.network import Network
from ml.numerics.chunking import RowBudget
from ml.numerics.gauss_newton import Product, gauss_newton
from ml.posteriors.mean_field import MeanFieldGaussian

FROZEN_DRAWS = 32
"""Draws that training, forgetting and readiness share: an energy is one function only under the same draws."""
_ROWS_AT_ONCE = 1024
_ROWS_SIGNED = 16


def frozen_draws(posterior: MeanFieldGaussian, draws: int, seed: int) -> Tensor:
    """(M, p): antithetic pairs μ ± σ∘ε, the second half mirroring the first."""
    check_draws(draws, seed)
    return posterior.mean + posterior.std * frozen_noise(draws, len(posterior.mean), seed, posterior.mean.device)


@dataclass(frozen=True, eq=False)
class NetworkEnergy:
    """F over any rows of `data`, named by their positions.

    Networks run in the precision of the data, sums in float64.
    """

    network: Network
    data: Tensor
    draws: Tensor  # (M, p), float64
    _budget: RowBudget = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_budget", RowBudget(_ROWS_AT_ONCE))

    def misfit(self, drift: Tensor, rows: Tensor) -> float:
        """Σ h(Δ, z) over these rows."""

        def compute(at_once: int) -> float:
            total = 0.0
            for draw, chunk in self._chunks(rows, at_once):
                theta = self._theta(draw, drift.to(self.data.dtype))
                total -= float(self.network.log_likelihood(theta, self.data[chunk]).double().sum())
            return total

        with torch.no_grad():
            return self._budget.run(compute, len(rows))

    def misfit_gradient(self, drift: Tensor, rows: Tensor) -> Tensor:
        at = drift.to(self.data.dtype, copy=True).requires_grad_()

        def compute(at_once: int) -> Tensor:
            total = torch.zeros_like(drift)
            for draw, chunk in self._chunks(rows, at_once):
                misfit = -self.network.log_likelihood(self._theta(draw, at), self.data[chunk]).sum()
                total += torch.autograd.grad(misfit, at)[0]
            return total

        return self._budget.run(compute, len(rows))

    def gradient(self, drift: Tensor, rows: Tensor) -> Tensor:
        """∇F(Δ) over these rows."""
        return self.misfit_gradient(drift, rows) + self.prior_gradient(drift)

    def prior_energy(self, drift: Tensor) -> float:
        """f(Δ), but for a constant."""
        return float((self.draws.mean(0) + drift).square().sum()) / (2 * self.network.prior_std**2)

    def prior_gradient(self, drift: Tensor) -> Tensor:
        return (self.draws.mean(0) + drift) / self.network.prior_std**2

    def estimate(self, drift: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        """F(Δ) over all rows but for a constant, unbiased, from a minibatch that one draw reads; differentiable."""
        draw = int(torch.randint(len(self.draws), (), generator=generator, device=generator.device))
        reads = len(range(draw, len(self.data), len(self.draws)))
        batch = torch.randint(reads, (batch_size,), generator=generator, device=generator.device)
        rows = self.data[(draw + len(self.draws) * batch).to(self.data.device)]
        misfit = -self.network.log_likelihood(self._theta(draw, drift), rows).mean() * (reads * len(self.draws))
        centre = self.draws.mean(0).to(drift.dtype)
        return misfit + (centre + drift).square().sum() / (2 * self.network.prior_std**2)

    def curvature(self, rows: Tensor, weight: float) -> Product:
        """v ↦ (weight·G + ∇²f) v at Δ = 0, with G the Gauss-Newton matrix of these rows, dealt out to the draws.

        The more draws, the nearer to their mean. They are linearised together: one by one, each would take as long.
        """
        origin = torch.zeros_like(self.draws[0], dtype=self.data.dtype)
        data_part, prior = self._data_part(rows, origin), self.network.prior_std**-2
        return lambda vector: weight * data_part(vector.to(origin.dtype)).to(vector.dtype) + prior * vector

    def fisher_diagonal(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """The diagonal of G over these rows, unbiased: Σ_i E (∂ log p(y | x_i)/∂θ)², y drawn from the model.

        (Σ_i ±g_i)² over independent signs has the expectation Σ_i g_i²: a few rows share one differentiation.
        """
        total = torch.zeros_like(self.draws[0])
        for draw, chunk in self._chunks(rows, _ROWS_AT_ONCE):
            at = self._theta(draw, torch.zeros((), dtype=self.data.dtype)).requires_grad_()
            for few in torch.split(chunk, _ROWS_SIGNED):
                total += self._signed_gradient(at, few, generator).double().square()
        return total

    def _data_part(self, rows: Tensor, origin: Tensor) -> Product:
        """v ↦ Gv. Once memory has run out nothing is kept from one product for the next."""
        most = min(_ROWS_AT_ONCE, len(rows))

        @functools.lru_cache(maxsize=1)
        def within(at_once: int) -> Product:
            outputs = [functools.partial(self._outputs, *dealt) for dealt in self._dealt(rows, at_once)]
            return gauss_newton(outputs, origin, keep=at_once >= most)

        self._budget.run(within, most)
        return lambda vector: self._budget.run(lambda at_once: within(at_once)(vector), most)

    def _signed_gradient(self, theta: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        outputs = self.network.outputs(theta, self.data[rows])
        chances = outputs.detach().softmax(1).to(generator.device)
        labels = torch.multinomial(chances, 1, generator=generator).flatten().to(outputs.device)
        signs = torch.randint(2, (len(rows),), generator=generator, device=generator.device).to(outputs.device)
        return torch.autograd.grad((self.network.score(outputs, labels) * (2 * signs - 1)).sum(), theta)[0]

    def _theta(self, draw: int, drift: Tensor) -> Tensor:
        return self.draws[draw].to(drift.dtype) + drift

    def _outputs(self, draws: Tensor, rows: Tensor, drift: Tensor) -> Tensor:
        """The logits of (k, r) rows, each of the k lots read by a draw of its own: (k·r, classes)."""
        thetas = self.draws[draws].to(drift.dtype) + drift
        return vmap(self.network.outputs)(thetas, self.data[rows]).flatten(0, 1)

    def _dealt(self, rows: Tensor, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Some draws, and (k, r) the rows of each. Its place decides who reads a row, not what memory holds."""
        order = self._paired()
        rounds = rows[: len(rows) // len(order) * len(order)].view(-1, len(order))
        rest = rows[rounds.numel() :].unsqueeze(0)
        for some in (*torch.split(rounds, max(1, at_once // len(order))), rest):
            readers = order[: some.shape[1]]
            for few, lots in zip(torch.split(readers, at_once), torch.split(some, at_once, dim=1), strict=True):
                if lots.numel() > 0:
                    yield few, lots.T

    def _chunks(self, rows: Tensor, at_once: int) -> Iterator[tuple[int, Tensor]]:
        """The rows that each draw reads, no more at once than memory should hold under differentiation."""
        readers = rows % len(self.draws)
        for draw in range(len(self.draws)):
            yield from ((draw, chunk) for chunk in torch.split(rows[readers == draw], at_once) if len(chunk) > 0)

    def _paired(self) -> Tensor:
        """0, M/2, 1, M/2 + 1, ...: a frozen draw is followed by its mirror image, so that odd errors cancel."""
        half = len(self.draws) // 2
        pairs = torch.arange(2 * half).view(2, half).T.flatten()
        return torch.cat([pairs, torch.arange(2 * half, len(self.draws))])
