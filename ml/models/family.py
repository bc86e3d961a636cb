"""Protocol of a model family, as training, forgetting and certification use it.

The energy of a family over data z_1..z_n is F(λ) = Σ_i h(λ, z_i) + f(λ), with λ = (mean, std) of its mean-field
posterior, h = -E_q log p(z | θ) and f = KL(q_λ ‖ prior). Every vector and matrix is in the order of `flat()`.

Bounds speak of scaled coordinates: λ̃ = λ/s, with s_j the power of two nearest to the width of parameter j at the
posterior of the expansion, the same for its mean and its width. There every width is about 1, so that a norm does not
mix units: scaling a column of the data changes no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ml.models.likelihood import Likelihood
from ml.posteriors.mean_field import MeanFieldGaussian


def width_scale(posterior: MeanFieldGaussian) -> Tensor:
    """Return s_j, the power of two nearest to the width σ_j, for each parameter. Scaling by it is exact in float64."""
    mantissa, _ = torch.frexp(posterior.std)  # σ = mantissa·2^e, with mantissa in [½, 1)
    power = posterior.std / mantissa
    return torch.where(mantissa < math.sqrt(0.5), power / 2, power)


@dataclass(frozen=True)
class Rounding:
    """Worst-case float64 error of an expansion in scaled coordinates: ‖s∘δg‖₂ for the gradient g, and the spectral norm
    of diag(s) δH diag(s) for the Hessian H.

    `gradient` is orthogonal to the family's invariant directions. What is not is at most `gradient_anywhere`.
    """

    gradient: float
    hessian: float
    gradient_anywhere: float = 0.0


@dataclass(frozen=True, eq=False)
class Expansion:
    """F, ∇F and ∇²F at one posterior, with a bound on their rounding. One pass serves a step and its certificate."""

    posterior: MeanFieldGaussian
    energy: float
    gradient: Tensor
    hessian: Tensor
    rounding: Rounding

    @cached_property
    def scale(self) -> Tensor:
        """s of `width_scale` for the means, then for the widths, in the order of `flat()`."""
        scale = width_scale(self.posterior).flatten()
        return torch.cat([scale, scale])


class Family(Likelihood, Protocol):
    """A likelihood whose energy and derivatives are known in closed form.

    Where F is an average over frozen noise in place of the expectation, the family is also a `FrozenNoiseFamily`.
    """

    convex: ClassVar[bool]
    """Whether F is convex in λ, so that it has one minimum."""

    @property
    def energy_name(self) -> str:
        """What F is, in the words of a certificate."""

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

    def invariant_directions(self, posterior: MeanFieldGaussian) -> Tensor | None:
        """Return orthonormal columns: directions of the scaled means along which no row's h changes; None if none."""

    def third_derivative_bound(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
        """Return a symmetric B with |∇³F̃[v,v,v]| ≤ |Qv| vᵀBv for every v, where F̃(λ̃) = F(s∘λ̃), |Q(λ̃ - λ/s)| ≤ radius,
        and Q projects out the invariant directions.

        It is proved, rounding included. Its entries are infinite if none is known.
        """
