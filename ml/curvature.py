"""Derivatives of the potential U(θ) = -Σ_i log p(z_i | θ) - log p(θ) of any likelihood, by automatic differentiation.

    product   ∇²U·v = ∇(∇U·v), without the matrix
    hessian   the products with the columns of the identity

`mean_…` are the same, averaged over the rows θ_1..θ_T of a sample set: the expectations in the paper's MCMC influence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from ml.errors import InvalidInput
from ml.models.likelihood import Likelihood

ROWS_AT_ONCE = 65_536

_Term = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Potential:
    """U over `data`, or the data's part of it alone.

    `rows_at_once` bounds memory: no more rows than this are under differentiation together, and a row counts once for
    each sample or direction that passes through it at the same time.
    """

    likelihood: Likelihood
    data: Tensor
    with_prior: bool = True
    rows_at_once: int = ROWS_AT_ONCE

    def __post_init__(self) -> None:
        if self.rows_at_once < 1:
            raise InvalidInput(f"rows_at_once is {self.rows_at_once}: let at least one row into memory")

    def value(self, theta: Tensor) -> Tensor:
        return torch.stack([term(theta) for term in self._terms()]).sum()

    def gradient(self, theta: Tensor) -> Tensor:
        return self.mean_gradient(theta.unsqueeze(0))

    def product(self, theta: Tensor, vector: Tensor) -> Tensor:
        return self.mean_product(theta.unsqueeze(0), vector)

    def hessian(self, theta: Tensor) -> Tensor:
        return self.mean_hessian(theta.unsqueeze(0))

    def mean_gradient(self, samples: Tensor) -> Tensor:
        total = torch.zeros_like(samples[0])
        for term in self._terms():
            total += vmap(grad(term), chunk_size=self._copies)(samples).mean(0)
        return total

    def mean_product(self, samples: Tensor, vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for term in self._terms():
            total += _mean_product(term, samples, vector, self._copies)
        return total

    def mean_hessian(self, samples: Tensor) -> Tensor:
        directions = torch.eye(samples.shape[1], dtype=samples.dtype, device=samples.device)
        copies, total = self._copies, torch.zeros_like(directions)
        at_once = max(1, copies // len(samples))
        for term in self._terms():
            column = functools.partial(_mean_product, term, samples, copies=copies)
            total += vmap(column, chunk_size=at_once)(directions)
        return (total + total.T) / 2

    @property
    def _copies(self) -> int:
        return max(1, self.rows_at_once // max(1, len(self.data)))

    def _terms(self) -> Iterator[_Term]:
        """U as a sum over chunks of rows; the prior rides with the first, which spares a differentiation."""
        for chunk, rows in enumerate(torch.split(self.data, self.rows_at_once)):
            yield functools.partial(self._term, rows, self.with_prior and chunk == 0)

    def _term(self, rows: Tensor, with_prior: bool, theta: Tensor) -> Tensor:
        misfit = -self.likelihood.log_likelihood(theta, rows).sum()
        return misfit - self.likelihood.log_prior(theta) if with_prior else misfit


def _mean_product(term: _Term, samples: Tensor, vector: Tensor, copies: int) -> Tensor:
    # Reverse over reverse: on small models twice as fast as forward over reverse, on a perceptron as fast.
    products: Tensor = vmap(grad(lambda theta: grad(term)(theta).dot(vector)), chunk_size=copies)(samples)
    return products.mean(0)
