"""Drawing from a posterior by several chains of one algorithm at once: burn-in, thinning, diagnostics.

The chains advance together as the rows of one tensor, each on minibatches of its own. They start at a given θ, spread
around it by `jitter` (in units of n^(-1/2)): far enough apart for R̂ to mean something, near enough to stay in one mode.
A mixture so keeps one labelling of its components; the draws are of the posterior of that labelling.

Preconditioned chains run in coordinates ψ with θ = m + √n H^(-1/2) ψ, m the mode that Newton's method finds from the
start and H the Hessian of U there (dense: for some thousand parameters at most). In them every direction has curvature
n, so that one step size fits all, a scale means the same for every model, and the algorithms can take off the width
that their discretisation adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.func import vmap

from ml.errors import InvalidInput, NumericalFailure
from ml.inference.diagnostics import Diagnostics, at_even_steps, diagnose
from ml.inference.laplace import fit_laplace
from ml.inference.sghmc import SGHMC
from ml.inference.sgld import SGLD, Gradient, StepSize, normal
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet

_EXPLODED = 1e6  # times the size of the start, or of 1
# Parameters above which chains gain nothing by being computed in one call (measured on a CPU).
_SIDE_BY_SIDE = 5_000
# What the width check looks at: it needs no more, and it may cost a tenth of the sampling: a fifteenth of
# the rows, as more of them at once take longer.
_WIDTH_DRAWS = 200
_WIDTH_ROWS = 4096
_SAMPLING_PER_WIDTH = 15
_LEAST_KEPT = 4  # R̂ splits each chain in two, and a variance needs two

OnStep = Callable[[int, float], None]
_Potential = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Chains:
    """Of the iterates after `burn_in`, each `thinning`-th is kept. Without a `batch_size`, gradients use every row.

    A minibatch adds noise that no algorithm here takes off: it must be large or the step small, and the width tells.
    """

    algorithm: SGLD | SGHMC
    iterations: int
    burn_in: int
    thinning: int = 1
    batch_size: int | None = None
    preconditioned: bool = False
    count: int = 4
    jitter: float = 2.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("count", self.count, 2),
            ("thinning", self.thinning, 1),
            ("burn_in", self.burn_in, 0),
        ):
            if value < least:
                raise InvalidInput(f"{name} is {value}: pass at least {least}")
        if self.kept < _LEAST_KEPT:
            raise InvalidInput(f"{self.kept} draws of each chain would be kept: raise iterations, or lower burn_in")
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidInput(f"batch_size is {self.batch_size}: pass at least 1, or None to use every row")
        if not 0 <= self.jitter < math.inf:
            raise InvalidInput(f"jitter is {self.jitter}: pass a number of at least 0")
        if self.preconditioned and math.isinf(self.algorithm.widening(1, 1, 1.0)):
            raise InvalidInput(
                f"{self.algorithm} is unstable on preconditioned chains: keep the scale of the step size "
                "below 2 for SGLD, below the friction for SGHMC"
            )

    @property
    def kept(self) -> int:
        """Draws of each chain."""
        return (self.iterations - self.burn_in) // self.thinning


# The BIF paper's experiments. On its mixture the sample sets are several times too wide, and the diagnostics say so.
PAPER_GMM_SGLD = Chains(SGLD(StepSize(4.0, 0.15)), iterations=2_000, burn_in=1_500, batch_size=64)
PAPER_GMM_SGHMC = Chains(SGHMC(StepSize(2.0, 0.15), friction=0.4), iterations=2_000, burn_in=1_500, batch_size=64)
# How many iterates of the networks were kept it does not say: fifty a chain, from the last 500.
PAPER_BNN_SGLD = Chains(SGLD(StepSize(0.5, 0.5)), iterations=10_000, burn_in=9_500, thinning=10, batch_size=128)
PAPER_BNN_SGHMC = Chains(
    SGHMC(StepSize(0.5, 0.5), friction=0.4), iterations=10_000, burn_in=9_500, thinning=10, batch_size=128
)
# Ours, for models whose Hessian can be stored: exact on a Gaussian at any stable step, so the step can be a long one.
SAFE_SGLD = Chains(SGLD(StepSize(0.5, 0.0)), iterations=2_200, burn_in=200, thinning=4, preconditioned=True)
SAFE_SGHMC = Chains(
    SGHMC(StepSize(0.2, 0.0), friction=0.6), iterations=2_200, burn_in=200, thinning=4, preconditioned=True
)
# Ours, for networks, from any `Network.initial(seed).mean`. SGLD's steps hardly decay, and get further in as many
# iterations; SGHMC's is constant, and after 3,000 as good as the paper's. They are stable while the largest curvature
# of U/n is below 2/scale (SGLD) or friction/scale (SGHMC): 4 and 5 here.
# No chain this short passes R̂ on a network's weights: use the draws for averaging predictions.
SAFE_BNN_SGLD = Chains(SGLD(StepSize(0.5, 0.15)), iterations=3_000, burn_in=2_500, thinning=25, batch_size=128, count=2)
SAFE_BNN_SGHMC = Chains(
    SGHMC(StepSize(0.04, 0.0), friction=0.2), iterations=3_000, burn_in=2_500, thinning=25, batch_size=128, count=2
)


@dataclass(frozen=True, eq=False)
class Sampled:
    sample_set: SampleSet
    diagnostics: Diagnostics


def sample(
    likelihood: Likelihood,
    data: Tensor,
    start: Tensor,
    config: Chains,
    generator: torch.Generator,
    on_step: OnStep | None = None,
) -> Sampled:
    """Draw from p(θ | data), chains side by side, and say how far the draws can be trusted.

    `start` is one θ for all chains: the mode, or near it. `on_step(iteration, step_size)` is told of every iteration.
    Draws that fail their diagnostics are returned all the same: read `diagnostics.warning` before using them.
    """
    _check(likelihood, data, start, config)
    coordinates = _coordinates(likelihood, data, start, config)
    slope = coordinates.slope(_slope(likelihood, data, config.batch_size, generator))
    origin = coordinates.start.expand(config.count, -1)
    spread_out = origin + normal(config.jitter**2 / len(data), origin, generator)
    curvature = float(len(data)) if config.preconditioned else 0.0
    positions = config.algorithm.walk(slope, spread_out, len(data), generator, curvature)
    kept = []
    for iteration, position in enumerate(islice(positions, config.iterations), 1):
        theta = coordinates.theta(position)
        _check_size(theta, start, config, iteration)
        if on_step is not None:
            on_step(iteration, config.algorithm.step_size.at(iteration, len(data)))
        past = iteration - config.burn_in
        if past > 0 and past % config.thinning == 0:
            kept.append(theta)
    draws = torch.stack(kept, 1)  # (chains, kept, p)
    return Sampled(_gather(draws), diagnose(draws, _slopes_at(likelihood, data, draws, config, generator)))


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """θ = origin + ψ basis; without a basis, θ = ψ. Rows are chains."""

    origin: Tensor
    basis: Tensor | None

    @property
    def start(self) -> Tensor:
        return self.origin if self.basis is None else torch.zeros_like(self.origin)

    def theta(self, position: Tensor) -> Tensor:
        return position if self.basis is None else self.origin + position @ self.basis

    def slope(self, slope: Gradient) -> Gradient:
        """∇_ψ U from ∇_θ U."""
        basis = self.basis
        return slope if basis is None else lambda position: slope(self.theta(position)) @ basis.T


def _coordinates(likelihood: Likelihood, data: Tensor, start: Tensor, config: Chains) -> _Coordinates:
    """With H = CCᵀ the basis √n C⁻¹ gives ψ the Hessian n I."""
    if not config.preconditioned:
        return _Coordinates(start, None)
    laplace = fit_laplace(Potential(likelihood, data), start)
    identity = torch.eye(len(start), dtype=start.dtype, device=start.device)
    inverse = torch.linalg.solve_triangular(torch.linalg.cholesky(laplace.hessian), identity, upper=False)
    return _Coordinates(laplace.mode, math.sqrt(len(data)) * inverse)


def _slope(likelihood: Likelihood, data: Tensor, batch_size: int | None, generator: torch.Generator) -> Gradient:
    """∇Ũ of each chain, Ũ(θ) = -(n/|batch|) Σ_batch log p(z | θ) - log p(θ), each chain with a batch of its own.

    It is computed in the precision of the rows. The chains keep float64, as their steps may vanish in float32.
    """

    def potential(theta: Tensor, rows: Tensor) -> Tensor:
        at, scale = theta.to(rows.dtype), len(data) / len(rows)
        return -scale * likelihood.log_likelihood(at, rows).sum() - likelihood.log_prior(at)

    gradients = _one_by_one if likelihood.parameter_count > _SIDE_BY_SIDE else _side_by_side

    def slope(theta: Tensor) -> Tensor:
        if batch_size is None:
            return gradients(potential, theta, data)
        chosen = _batches(len(theta), batch_size, len(data), generator).to(data.device)
        return gradients(potential, theta, data[chosen])

    return slope


def _side_by_side(potential: _Potential, theta: Tensor, rows: Tensor) -> Tensor:
    """Of every chain in one call. `rows` are (rows, columns) for all chains, or (chains, rows, columns)."""
    at = theta.detach().requires_grad_()
    each = vmap(potential, in_dims=(0, 0 if rows.ndim == 3 else None))
    return torch.autograd.grad(each(at, rows).sum(), at)[0]


def _one_by_one(potential: _Potential, theta: Tensor, rows: Tensor) -> Tensor:
    """The same, and faster where a chain keeps the processor busy by itself: convolutions dislike batched weights."""
    batches = rows.expand(len(theta), *rows.shape[-2:])
    leaves = [at.detach().requires_grad_() for at in theta]
    return torch.stack(
        [torch.autograd.grad(potential(at, batch), at)[0] for at, batch in zip(leaves, batches, strict=True)]
    )


def _batches(chains: int, size: int, rows: int, generator: torch.Generator) -> Tensor:
    """For each chain, `size` different rows, every subset being as likely."""
    return torch.rand(chains, rows, generator=generator, device=generator.device).topk(size).indices


def _slopes_at(
    likelihood: Likelihood, data: Tensor, draws: Tensor, config: Chains, generator: torch.Generator
) -> Tensor:
    """∇U at some draws of each chain; from fresh rows, which leave it unbiased, unless all can be afforded."""
    seen, rows = _width_sizes(config, len(data))
    slope = _slope(likelihood, data, None if rows == len(data) else rows, generator)
    return torch.stack([slope(theta) for theta in at_even_steps(draws, seen).unbind(1)], 1)


def _width_sizes(config: Chains, rows: int) -> tuple[int, int]:
    """How many draws of a chain, and how many rows for each, together within a share of what sampling has read.

    Many draws of few rows: the noise of the rows depends on their total alone, that of the draws on their number.
    """
    affordable = max(1, config.iterations // _SAMPLING_PER_WIDTH)
    seen = min(_WIDTH_DRAWS, config.kept, affordable)
    return seen, min(rows, _WIDTH_ROWS, (config.batch_size or rows) * affordable // seen)


def _gather(draws: Tensor) -> SampleSet:
    chains, kept, _ = draws.shape
    return SampleSet(draws.flatten(0, 1), torch.arange(chains, device=draws.device).repeat_interleave(kept))


def _check_size(theta: Tensor, start: Tensor, config: Chains, iteration: int) -> None:
    # Written so that NaN fails too.
    if not float(theta.abs().max()) <= _EXPLODED * max(1.0, float(start.abs().max())):
        raise NumericalFailure(
            f"the chains exploded at iteration {iteration}: lower the scale of {config.algorithm.step_size}"
        )


def _check(likelihood: Likelihood, data: Tensor, start: Tensor, config: Chains) -> None:
    likelihood.check_data(data)
    if start.shape != (likelihood.parameter_count,):
        raise InvalidInput(f"start has shape {tuple(start.shape)}: pass one θ of length {likelihood.parameter_count}")
    if start.dtype != torch.float64 or not bool(torch.isfinite(start).all()):
        raise InvalidInput("start is not finite torch.float64: convert it, or train again")
    if config.batch_size is not None and config.batch_size > len(data):
        raise InvalidInput(f"batch_size {config.batch_size} exceeds the {len(data)} rows: pass None to use every row")
