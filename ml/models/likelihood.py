"""Protocol of a likelihood with a prior: all that sampling and moving samples need. `Family` adds closed forms.

θ is one flat vector, and the potential is U(θ) = -Σ_i log p(z_i | θ) - log p(θ).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Likelihood(Protocol):
    """p(z | θ) and p(θ)."""

    @property
    def parameter_count(self) -> int:
        """Length of θ."""

    def check_data(self, data: Tensor) -> None:
        """Raise InvalidInput unless the rows can be modelled."""

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        """Return log p(z_i | θ) of each row: (n,). Differentiable by torch.func, so without data-dependent branches."""

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return log p(θ), a scalar."""
