"""Protocol of a model family, as training, forgetting and certification use it.

The energy of a family over data z_1..z_n is F(λ) = Σ_i h(λ, z_i) + f(λ), with λ = (mean, std) of its mean-field
posterior, h = -E_q log p(z | θ) and f = KL(q_λ ‖ prior). Every vector and matrix is in the order of `flat()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ml.models.likelihood import Likelihood
from ml.posteriors.mean_field import MeanFieldGaussian


@dataclass(frozen=True)
class Rounding:
    """Worst-case float64 error of an expansion: Euclidean for the gradient, spectral for the Hessian."""

    gradient: float
    hessian: float


@dataclass(frozen=True, eq=False)
class Expansion:
    """F, ∇F and ∇²F at one posterior, with a bound on their rounding. One pass serves a step and its certificate."""

    posterior: MeanFieldGaussian
    energy: float
    gradient: Tensor
    hessian: Tensor
    rounding: Rounding


class Family(Likelihood, Protocol):
    """A likelihood whose energy and derivatives are known in closed form."""

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        """Raise InvalidInput unless the posterior belongs to this family."""

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """Return a posterior to start training from."""

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        """Make one pass of the family's own descent. It is cheap and never raises F, but may converge slowly."""

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        """Return F and its first two derivatives, with an a-priori bound on their rounding."""

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        """Return Σ_{z in group} ∇h(λ, z), without the prior's part."""

    def lipschitz(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
        """Return a proved L with ‖∇³F‖ ≤ L on the Euclidean ball of that radius around λ; inf if none is known."""
