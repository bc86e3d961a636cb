"""Energy of a network's posterior as a deterministic function of a drift Δ of frozen draws.

    F(Δ) = Σ_i h(Δ, z_i) + f(Δ)        h(Δ, z_i) = -mean_t log p(z_i | s_t + Δ),  t ≡ i (mod M/r)
                                       f(Δ) = -mean_t log prior(s_t + Δ)

s_1..s_M are draws of the posterior: stored samples, or μ + σ∘ε_t with ε_t frozen. Each row is always read by the same r
draws, so a pass over the data costs r evaluations a row. Removing a row removes its h and changes no other.

Means can fit frozen noise. With r = 1 on 2,000 rows, a perceptron of 147 parameters at the minimum of F was 19 nats
above where it started in the exact energy; with r = 8 it was 0.5 nats below. `default_reads` takes as many as a small
data set needs.

The widths are not part of Δ. With few draws a joint energy of (μ, σ) has directions that no draw covers, along which a
solve diverges. In expectation the widths separate from the means and follow from `fisher_diagonal` in closed form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import vmap

from ml.errors import InvalidInput
from ml.models.frozen_noise import check_draws, frozen_noise
from ml.models.network import Network
from ml.numerics.chunking import RowBudget
from ml.numerics.gauss_newton import Product, gauss_newton
from ml.posteriors.mean_field import MeanFieldGaussian

FROZEN_DRAWS = 32
"""Number of draws in training, forgetting and readiness. They must agree: other draws mean another energy."""
MAX_READINGS = 16_384
"""Rows times reads of a data set that is small enough to be read by several draws."""
_MAX_WORK = 1 << 26  # readings times parameters
_ROWS_AT_ONCE = 1024
_ROWS_PER_SIGNED_GRADIENT = 16


def frozen_draws(posterior: MeanFieldGaussian, draws: int, seed: int) -> Tensor:
    """Return antithetic draws μ ± σ∘ε, the second half mirroring the first: (M, p)."""
    check_draws(draws, seed)
    return posterior.mean + posterior.std * frozen_noise(draws, len(posterior.mean), seed, posterior.mean.device)


def frozen_energy(
    network: Network, posterior: MeanFieldGaussian, data: Tensor, draws: int = FROZEN_DRAWS
) -> NetworkEnergy:
    """Return the energy of a mean-field posterior under the noise that training, forgetting and readiness share."""
    reads = math.gcd(default_reads(len(data)), draws)
    return NetworkEnergy(network, data, frozen_draws(posterior, draws, seed=0), reads)


def default_reads(rows: int) -> int:
    """Return by how many of the `FROZEN_DRAWS` each row is read: a power of two, 1 for a large data set."""
    reads = max(1, min(FROZEN_DRAWS, MAX_READINGS // max(1, rows)))
    return 1 << (reads.bit_length() - 1)


def can_be_read_whole(network: Network, rows: int) -> bool:
    """Return whether hundreds of passes over all rows are affordable: they cost less than training from scratch."""
    return rows <= MAX_READINGS and rows * default_reads(rows) * network.parameter_count <= _MAX_WORK


@dataclass(frozen=True, eq=False)
class NetworkEnergy:
    """F over any rows of `data`, given by their positions.

    Networks run in the precision of the data, sums in float64.
    """

    network: Network
    data: Tensor
    draws: Tensor  # (M, p), float64
    reads: int = 1  # r, a divisor of M
    _budget: RowBudget = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.reads < 1 or len(self.draws) % self.reads != 0:
            raise InvalidInput(f"reads is {self.reads} for {len(self.draws)} draws: pass a divisor of their number")
        object.__setattr__(self, "_budget", RowBudget(_ROWS_AT_ONCE))

    @property
    def stride(self) -> int:
        """Row i is read by draws t with t ≡ i modulo this number."""
        return len(self.draws) // self.reads

    def misfit(self, drift: Tensor, rows: Tensor) -> float:
        """Return Σ h(Δ, z) over these rows."""

        def compute(at_once: int) -> float:
            total = 0.0
            for draw, chunk in self._chunks(rows, at_once):
                theta = self._theta(draw, drift.to(self.data.dtype))
                total -= float(self.network.log_likelihood(theta, self.data[chunk]).double().sum())
            return total / self.reads

        with torch.no_grad():
            return self._budget.run(compute, len(rows))

    def misfit_gradient(self, drift: Tensor, rows: Tensor) -> Tensor:
        at = drift.to(self.data.dtype, copy=True).requires_grad_()

        def compute(at_once: int) -> Tensor:
            total = torch.zeros_like(drift)
            for draw, chunk in self._chunks(rows, at_once):
                misfit = -self.network.log_likelihood(self._theta(draw, at), self.data[chunk]).sum()
                total += torch.autograd.grad(misfit, at)[0]
            return total / self.reads

        return self._budget.run(compute, len(rows))

    def gradient(self, drift: Tensor, rows: Tensor) -> Tensor:
        """Return ∇F(Δ) over these rows."""
        return self.misfit_gradient(drift, rows) + self.prior_gradient(drift)

    def prior_energy(self, drift: Tensor) -> float:
        """Return f(Δ) up to a constant."""
        return float((self.draws.mean(0) + drift).square().sum()) / (2 * self.network.prior_std**2)

    def prior_gradient(self, drift: Tensor) -> Tensor:
        return (self.draws.mean(0) + drift) / self.network.prior_std**2

    def estimate(self, drift: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        """Return an unbiased, differentiable estimate of F(Δ) over all rows, up to a constant.

        It comes from a minibatch of the rows of one random draw.
        """
        draw = int(torch.randint(len(self.draws), (), generator=generator, device=generator.device))
        first, stride = draw % self.stride, self.stride
        row_count = len(range(first, len(self.data), stride))
        batch = torch.randint(row_count, (batch_size,), generator=generator, device=generator.device)
        rows = self.data[(first + stride * batch).to(self.data.device)]
        misfit = -self.network.log_likelihood(self._theta(draw, drift), rows).mean() * (row_count * stride)
        centre = self.draws.mean(0).to(drift.dtype)
        return misfit + (centre + drift).square().sum() / (2 * self.network.prior_std**2)

    def curvature(self, rows: Tensor, weight: float) -> Product:
        """Return v ↦ (weight·G + ∇²f) v at Δ = 0, with G the Gauss-Newton matrix of these rows, split among the draws.

        More draws come nearer to their mean. All are linearised together, in the time that a single draw would take.
        """
        origin = torch.zeros_like(self.draws[0], dtype=self.data.dtype)
        data_part, prior = self._data_part(rows, origin), self.network.prior_std**-2
        return lambda vector: weight * data_part(vector.to(origin.dtype)).to(vector.dtype) + prior * vector

    def fisher_diagonal(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return an unbiased estimate of the diagonal of G: Σ_i E (∂ log p(y | x_i)/∂θ)², y drawn from the model.

        (Σ_i ±g_i)² over independent signs has the expectation Σ_i g_i², so a few rows share one differentiation.
        """
        total = torch.zeros_like(self.draws[0])
        for draw, chunk in self._chunks(rows, _ROWS_AT_ONCE):
            at = self._theta(draw, torch.zeros((), dtype=self.data.dtype)).requires_grad_()
            for group in torch.split(chunk, _ROWS_PER_SIGNED_GRADIENT):
                total += self._signed_gradient(at, group, generator).double().square()
        return total / self.reads

    def _data_part(self, rows: Tensor, origin: Tensor) -> Product:
        """Return v ↦ Gv. Linearisations are kept between products until memory has run out once."""
        largest = min(_ROWS_AT_ONCE, len(rows))

        @functools.lru_cache(maxsize=1)
        def linearised(at_once: int) -> Product:
            outputs = [functools.partial(self._outputs, *part) for part in self._split_among_draws(rows, at_once)]
            return gauss_newton(outputs, origin, keep=at_once >= largest)

        self._budget.run(linearised, largest)
        return lambda vector: self._budget.run(lambda at_once: linearised(at_once)(vector), largest)

    def _signed_gradient(self, theta: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        outputs = self.network.outputs(theta, self.data[rows])
        probabilities = outputs.detach().softmax(1).to(generator.device)
        labels = torch.multinomial(probabilities, 1, generator=generator).flatten().to(outputs.device)
        signs = torch.randint(2, (len(rows),), generator=generator, device=generator.device).to(outputs.device)
        return torch.autograd.grad((self.network.score(outputs, labels) * (2 * signs - 1)).sum(), theta)[0]

    def _theta(self, draw: int, drift: Tensor) -> Tensor:
        return self.draws[draw].to(drift.dtype) + drift

    def _outputs(self, draws: Tensor, rows: Tensor, drift: Tensor) -> Tensor:
        """Return the logits of rows (k, r), with one draw for each of the k groups: (k·r, classes)."""
        thetas = self.draws[draws].to(drift.dtype) + drift
        return vmap(self.network.outputs)(thetas, self.data[rows]).flatten(0, 1)

    def _split_among_draws(self, rows: Tensor, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield k draws and the rows (k, r) of each. A row's draw depends on its position, not on `at_once`."""
        order = self._paired_order()
        rounds = rows[: len(rows) // len(order) * len(order)].view(-1, len(order))
        remainder = rows[rounds.numel() :].unsqueeze(0)
        for block in (*torch.split(rounds, max(1, at_once // len(order))), remainder):
            draws = order[: block.shape[1]]
            for part, columns in zip(torch.split(draws, at_once), torch.split(block, at_once, dim=1), strict=True):
                if columns.numel() > 0:
                    yield part, columns.T

    def _chunks(self, rows: Tensor, at_once: int) -> Iterator[tuple[int, Tensor]]:
        """Yield each draw with its rows, in chunks of at most `at_once`, which bounds memory."""
        classes = rows % self.stride
        for draw in range(len(self.draws)):
            own = rows[classes == draw % self.stride]
            yield from ((draw, chunk) for chunk in torch.split(own, at_once) if len(chunk) > 0)

    def _paired_order(self) -> Tensor:
        """Return 0, M/2, 1, M/2 + 1, ...: each draw followed by its mirror image, so that odd errors cancel."""
        half = len(self.draws) // 2
        pairs = torch.arange(2 * half).view(2, half).T.flatten()
        return torch.cat([pairs, torch.arange(2 * half, len(self.draws))])
