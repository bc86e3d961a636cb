"""What samplers, and forgetting by moving samples, need of a family. It asks less than `Family`: no closed forms.

θ is one flat vector, so that the potential is U(θ) = -Σ_i log p(z_i | θ) - log p(θ) for every family alike.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Likelihood(Protocol):
    @property
    def parameter_count(self) -> int:
        """The length of θ."""

    def check_data(self, data: Tensor) -> None:
        """Raise InvalidInput unless the rows can be modelled."""

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        """log p(z_i | θ) for each row: (n,). Differentiable and free of data-dependent branches, for torch.func."""

    def log_prior(self, theta: Tensor) -> Tensor:
        """log p(θ), a scalar."""
