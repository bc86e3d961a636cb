"""Bayesian Gaussian mixture with unit-variance components, uniform weights and prior μ_k ~ N(0, prior_std² I).

q(μ_k) = N(m_k, diag s_k²). The responsibilities are optimised out, so λ = (m, s) are the only parameters:

    u_k = (x - m_k, -s_k)      φ = softmax_k(-½|u_k|²)
    h(λ, x) = -log Σ_k exp(-½|u_k|²) + log K + d/2 log 2π
    f(λ)    = Σ (m² + s²)/(2σ²) - log s + log σ - ½                                    σ = prior_std
    ∇h  = -Σ_k φ_k u_k
    ∇²h = Σ_k φ_k P_k - [Σ_k φ_k u_k u_kᵀ - (Σ_k φ_k u_k)(Σ_k φ_k u_k)ᵀ]               P_k: identity on block k

(u_k stands in block k of λ. -½|u_k|² is the usual Σ_j x_j m_kj - (m_kj² + s_kj²)/2 less ½|x|²; this form avoids the
cancellation of two large sums in F.) F = Σ h + f is a negative evidence lower bound, constants included.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models import gmm_bounds
from ml.models.checks import check_count
from ml.models.family import Expansion
from ml.posteriors.mean_field import MeanFieldGaussian

# Fourth powers of values between 1/_LARGEST and _LARGEST, and their sums, are finite in float64.
_LARGEST = 1e50


@dataclass(frozen=True, eq=False)
class Responsibilities:
    """Responsibilities of K components for n rows. Rows run along the last axis, so that each operation is one loop."""

    offsets: Tensor  # x - m_k: (K, d, n)
    squared_norms: Tensor  # |u_k|²: (K, n)
    smallest: Tensor  # min_k |u_k|²: (n,)
    total: Tensor  # Σ_k exp(-½(|u_k|² - smallest)): (n,)
    phi: Tensor  # responsibilities: (K, n)

    def misfit(self) -> float:
        """Return -Σ log Σ_k exp(-½|u_k|²) over the rows."""
        return float(0.5 * self.smallest.sum() - self.total.log().sum())


@dataclass(frozen=True)
class GaussianMixture:
    components: int
    dimensions: int
    prior_std: float
    convex: ClassVar[bool] = False
    energy_name: ClassVar[str] = "the negative evidence lower bound (ELBO) with the best responsibilities"

    def __post_init__(self) -> None:
        check_count("components", self.components)
        check_count("dimensions", self.dimensions)
        if type(self.prior_std) not in (int, float) or not 1 / _LARGEST <= self.prior_std <= _LARGEST:
            raise InvalidInput(f"prior_std is {self.prior_std!r}: pass a number between 1e-50 and 1e50")

    def check_data(self, data: Tensor) -> None:
        if data.ndim != 2 or data.shape[1] != self.dimensions:
            raise InvalidInput(f"data has shape {tuple(data.shape)}: pass rows of {self.dimensions} columns")
        if data.dtype != torch.float64:
            raise InvalidInput(f"data is {data.dtype}: convert it to torch.float64")
        if len(data) < self.components:
            raise InvalidInput(
                f"{len(data)} rows are too few for {self.components} components: keep more rows or use fewer components"
            )
        if not float(data.abs().max()) <= _LARGEST:
            raise InvalidInput("data holds NaN, infinity or values beyond 1e50: clean, scale or drop those rows")

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        expected = (self.components, self.dimensions)
        if posterior.mean.shape != expected:
            raise InvalidInput(f"posterior has shape {tuple(posterior.mean.shape)}: this mixture needs {expected}")
        if float(posterior.flat().abs().max()) > _LARGEST or float(posterior.std.min()) < 1 / _LARGEST:
            raise InvalidInput("posterior holds values beyond 1e50 or std below 1e-50: scale the data and train again")

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """k-means++: each next centre is a row, drawn with probability ∝ its squared distance to the nearest centre."""
        self.check_data(data)
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(self.components, generator=generator, dtype=torch.float64).to(data.device)
        chosen = [int(draws[0] * len(data))]
        nearest = (data - data[chosen[0]]).square().sum(1)
        for draw in draws[1:]:
            mass = nearest.cumsum(0)
            chosen.append(int(torch.searchsorted(mass, draw * mass[-1]).clamp(max=len(data) - 1)))
            nearest = torch.minimum(nearest, (data - data[chosen[-1]]).square().sum(1))
        precision = self.prior_std**-2 + len(data) / self.components
        return MeanFieldGaussian(data[chosen], torch.full_like(data[chosen], precision**-0.5))

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        """Coordinate ascent in closed form: m_k = Σφx / (1/σ² + Σφ), s_k² = 1 / (1/σ² + Σφ)."""
        precision = torch.full_like(posterior.mean, self.prior_std**-2)
        total = torch.zeros_like(posterior.mean)
        for rows, chunk in self.responsibilities(posterior, data):
            precision += chunk.phi.sum(1, keepdim=True)
            total += chunk.phi @ rows
        return MeanFieldGaussian(total / precision, precision.rsqrt())

    def energy(self, flat: Tensor, data: Tensor) -> Tensor:
        """Return F at λ for automatic differentiation, as products of matrices, which differentiate fastest.

        `expand` computes the derivatives faster, and with more digits where rows lie far from 0.
        """
        mean, std = flat.reshape(2, self.components, self.dimensions)
        exponents = mean @ data.T - 0.5 * (mean.square() + std.square()).sum(1, keepdim=True)
        misfit = 0.5 * data.square().sum() - torch.logsumexp(exponents, 0).sum()
        prior: Tensor = 0.5 * self.prior_std**-2 * flat.dot(flat) - std.log().sum()
        return prior + misfit + self._constant(len(data))

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        """Make one pass over the rows, summing moments of y_k = (x - m_k, 1), in which u_k is linear."""
        energy, gradient, curvature = self._prior(posterior)
        energy += self._constant(len(data))
        sides = self.dimensions + 1
        within = gradient.new_zeros(self.components, sides, sides)  # Σ φ_k y_k y_kᵀ
        between = gradient.new_zeros(self.components * sides, self.components * sides)  # Σ (Σφy)(Σφy)ᵀ
        first, largest, noise = 0.0, 0.0, gradient.new_zeros(2)
        for _, chunk in self.responsibilities(posterior, data):
            y = torch.cat([chunk.offsets, chunk.offsets.new_ones(self.components, 1, len(chunk.smallest))], 1)
            weighted = chunk.phi.unsqueeze(1) * y
            within.baddbmm_(weighted, y.transpose(1, 2))
            stacked = weighted.flatten(0, 1)
            between.addmm_(stacked, stacked.T)
            energy += chunk.misfit()
            first += float(chunk.phi.flatten().dot(chunk.squared_norms.flatten()))
            largest = max(largest, float(chunk.squared_norms.max()))
            noise += gmm_bounds.responsibility_noise(chunk)
        blocks = between.view(self.components, sides, self.components, sides).diagonal(dim1=0, dim2=2)
        blocks.sub_(within.permute(1, 2, 0))
        lift, sums = self._lift(posterior), within[:, :, -1]  # Σ φ_k y_k, since the last entry of y is 1
        gradient.addmv_(lift, sums.flatten(), alpha=-1)
        hessian = lift @ between @ lift.T
        curvature.view(2, self.components, -1).add_(sums[:, -1:])
        hessian.diagonal().add_(curvature)
        rounding = gmm_bounds.rounding(self, posterior, len(data), first, largest, noise)
        return Expansion(posterior, energy, gradient, (hessian + hessian.T) / 2, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        gradient = torch.zeros_like(posterior.flat())
        for _, chunk in self.responsibilities(posterior, group):
            offsets = (chunk.phi.unsqueeze(1) * chunk.offsets).sum(2)
            gradient += torch.cat([-offsets.flatten(), (chunk.phi.sum(1, keepdim=True) * posterior.std).flatten()])
        return gradient

    def invariant_directions(self, posterior: MeanFieldGaussian) -> None:
        return None

    def third_derivative_bound(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
        return gmm_bounds.third_derivative_bound(self, posterior, data, radius)

    @property
    def parameter_count(self) -> int:
        return self.components * self.dimensions

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        """Return log p(x | θ) of each row, for centres θ: logsumexp_k(-½|x - θ_k|²) - log K - d/2 log 2π."""
        offsets = data.T.contiguous() - theta.reshape(self.components, self.dimensions, 1)  # (K, d, n)
        constant = math.log(self.components) + self.dimensions / 2 * math.log(2 * math.pi)
        return torch.logsumexp(-0.5 * offsets.square().sum(1), 0) - constant

    def log_prior(self, theta: Tensor) -> Tensor:
        scaled = theta / self.prior_std
        return -0.5 * scaled.dot(scaled) - len(theta) * (math.log(self.prior_std) + 0.5 * math.log(2 * math.pi))

    def responsibilities(self, posterior: MeanFieldGaussian, data: Tensor) -> Iterator[tuple[Tensor, Responsibilities]]:
        """Yield the rows in chunks, which bounds memory, each with the components' responsibilities."""
        mean, variance = posterior.mean.unsqueeze(2), posterior.std.square().sum(1, keepdim=True)
        for rows in torch.split(data, gmm_bounds.CHUNK_ROWS):
            offsets = rows.T.contiguous() - mean
            squared_norms = offsets.square().sum(1).add_(variance)
            smallest = squared_norms.amin(0)
            exponentials = (smallest - squared_norms).mul_(0.5).exp_()
            total = exponentials.sum(0)
            yield rows, Responsibilities(offsets, squared_norms, smallest, total, exponentials.div_(total))

    def _lift(self, posterior: MeanFieldGaussian) -> Tensor:
        """Return the matrix that maps all (x - m_k, 1) to all u_k = (x - m_k, -s_k), in the order of `flat()`."""
        lift = _pattern(self.components, self.dimensions, posterior.mean.device).clone()
        lift[self.parameter_count :].mul_(posterior.std.view(-1, 1))
        return lift

    def _prior(self, posterior: MeanFieldGaussian) -> tuple[float, Tensor, Tensor]:
        """Return f without its constant, ∇f and the diagonal of ∇²f."""
        flat, precision, size = posterior.flat(), self.prior_std**-2, self.parameter_count
        inverse = flat[size:].reciprocal()
        energy = 0.5 * precision * float(flat.dot(flat)) + float(inverse.log().sum())
        curvature = torch.full_like(flat, precision)
        curvature[size:].addcmul_(inverse, inverse)
        gradient = precision * flat
        gradient[size:].sub_(inverse)
        return energy, gradient, curvature

    def _constant(self, rows: int) -> float:
        """Return the part of F that does not depend on λ."""
        per_row = math.log(self.components) + self.dimensions / 2 * math.log(2 * math.pi)
        return rows * per_row + self.parameter_count * (math.log(self.prior_std) - 0.5)


@functools.lru_cache(maxsize=16)
def _pattern(components: int, dimensions: int, device: torch.device) -> Tensor:
    """Return the sign pattern of `_lift`: entries of λ by entries of all (x - m_k, 1)."""
    entries = torch.arange(components * (dimensions + 1), device=device).reshape(components, dimensions + 1)
    partner = torch.cat([entries[:, :-1].flatten(), entries[:, -1:].expand(-1, dimensions).flatten()])
    pattern = torch.nn.functional.one_hot(partner, entries.numel()).to(torch.float64)
    pattern[components * dimensions :].neg_()
    return pattern
