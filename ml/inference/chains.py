"""Sampling from a posterior by several parallel chains: burn-in, thinning, diagnostics.

The chains advance together as the rows of one tensor, each on its own minibatches. They start at a given θ, spread
around it by `jitter` (in units of n^(-1/2)): far enough apart for R̂ to be informative, near enough to stay in one mode.
A mixture thus keeps one labelling of its components, and the draws are of the posterior of that labelling. Or each
chain starts at a θ of its own, as a network's should: no mode of its weights is the right one.

Preconditioned chains run in coordinates ψ with θ = m + √n H^(-1/2) ψ, where m is the mode that Newton's method reaches
from the start and H the Hessian of U there (dense, so for a few thousand parameters at most). There every direction has
curvature n: one step size fits all, a scale means the same for every model, and the algorithms can remove the width
that their discretisation adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor
from torch.func import vmap

from ml.errors import InvalidInput, NumericalFailure
from ml.inference.cyclical import Cyclical
from ml.inference.diagnostics import Diagnostics, diagnose, evenly_spaced_draws
from ml.inference.hmc import HMC, Energy
from ml.inference.laplace import fit_laplace
from ml.inference.network_diagnostics import diagnose_network
from ml.inference.prior_hmc import PriorHMC
from ml.inference.sghmc import SGHMC
from ml.inference.sgld import SGLD, StepSize, normal
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet

_EXPLODED = 1e6  # times the size of the start, or of 1
# Number of parameters up to which computing all chains in one call is faster (measured on a CPU).
_MAX_BATCHED_PARAMETERS = 5_000
# Limits of the checks against the potential, which take gradients at some draws. With minibatches they should cost at
# most a tenth of the sampling: a fifteenth of the rows, as a larger batch takes longer per row.
_CHECKED_DRAWS = 500
_CHECKED_ROWS = 4096
_SAMPLING_PER_CHECK = 15
MIN_DRAWS_PER_CHAIN = 4  # R̂ splits each chain in two, and a variance needs two

OnStep = Callable[[int, float], None]
Algorithm = SGLD | SGHMC | HMC | PriorHMC
_Potential = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Chains:
    """Configuration of the chains. After `burn_in`, every `thinning`-th iterate is a draw.

    Without a `batch_size`, gradients use every row. Minibatches add noise that no algorithm removes, so they must be
    large or the step small; the diagnostics show whether they are. HMC uses every row of preconditioned chains,
    PriorHMC every row. Cyclical step sizes give draws only in the sampling stage of a cycle.
    """

    algorithm: Algorithm
    iterations: int
    burn_in: int
    thinning: int = 1
    batch_size: int | None = None
    preconditioned: bool = False
    count: int = 4
    jitter: float = 2.0

    def __post_init__(self) -> None:
        for name, value, minimum in (
            ("count", self.count, 2),
            ("thinning", self.thinning, 1),
            ("burn_in", self.burn_in, 0),
        ):
            if value < minimum:
                raise InvalidInput(f"{name} is {value}: pass at least {minimum}")
        if self.draws_per_chain < MIN_DRAWS_PER_CHAIN:
            raise InvalidInput(
                f"{self.draws_per_chain} draws of each chain would remain: raise iterations, or lower burn_in"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidInput(f"batch_size is {self.batch_size}: pass at least 1, or None to use every row")
        if not 0 <= self.jitter < math.inf:
            raise InvalidInput(f"jitter is {self.jitter}: pass a number of at least 0")
        if isinstance(self.algorithm, HMC | PriorHMC):
            self._check_hmc(self.algorithm)
        elif self.preconditioned and math.isinf(self.algorithm.variance_inflation(1, 1, 1.0)):
            raise InvalidInput(
                f"{self.algorithm} is unstable on preconditioned chains: keep the scale of the step size "
                "below 2 for SGLD, below the friction for SGHMC"
            )

    def _check_hmc(self, algorithm: HMC | PriorHMC) -> None:
        if isinstance(algorithm, PriorHMC) and (self.batch_size is not None or self.preconditioned):
            raise InvalidInput("PriorHMC reads every row in units of the prior: leave batch_size, preconditioned out")
        if isinstance(algorithm, HMC) and (self.batch_size is not None or not self.preconditioned):
            raise InvalidInput("HMC needs preconditioned chains on every row: set preconditioned, leave batch_size out")
        if algorithm.tuning > self.burn_in:
            raise InvalidInput(f"tuning lasts {algorithm.tuning} iterations, burn_in {self.burn_in}: raise burn_in")

    @property
    def draws_per_chain(self) -> int:
        return sum(self.is_draw(iteration) for iteration in range(1, self.iterations + 1))

    def row_passes(self, rows: int) -> int:
        """Return the gradients of a row that the chains take on so many rows, diagnostics not counted."""
        steps = self.algorithm.steps if isinstance(self.algorithm, HMC | PriorHMC) else 1
        return self.count * self.iterations * steps * min(self.batch_size or rows, rows)

    def is_draw(self, iteration: int) -> bool:
        """Return whether the iterate is kept; the first iteration is 1."""
        after_burn_in = iteration - self.burn_in
        kept = after_burn_in > 0 and after_burn_in % self.thinning == 0
        return kept and (isinstance(self.algorithm, HMC | PriorHMC) or self.algorithm.step_size.samples(iteration))


# Settings of the BIF paper. On its mixture the sample sets are several times too wide, and the diagnostics say so.
PAPER_GMM_SGLD = Chains(SGLD(StepSize(4.0, 0.15)), iterations=2_000, burn_in=1_500, batch_size=64)
PAPER_GMM_SGHMC = Chains(SGHMC(StepSize(2.0, 0.15), friction=0.4), iterations=2_000, burn_in=1_500, batch_size=64)
# The paper does not say how many iterates of the networks are kept: here fifty a chain, from the last 500.
PAPER_BNN_SGLD = Chains(SGLD(StepSize(0.5, 0.5)), iterations=10_000, burn_in=9_500, thinning=10, batch_size=128)
PAPER_BNN_SGHMC = Chains(
    SGHMC(StepSize(0.5, 0.5), friction=0.4), iterations=10_000, burn_in=9_500, thinning=10, batch_size=128
)
# Our settings for models whose Hessian can be stored. HMC draws from the posterior itself. SGLD and SGHMC are exact on
# a Gaussian at any stable step, so the step can be long, and nearly exact where the rows are many.
SAFE_HMC = Chains(HMC(steps=4, tuning=60), iterations=600, burn_in=100, preconditioned=True)
SAFE_SGLD = Chains(SGLD(StepSize(0.5, 0.0)), iterations=2_200, burn_in=200, thinning=4, preconditioned=True)
SAFE_SGHMC = Chains(
    SGHMC(StepSize(0.2, 0.0), friction=0.6), iterations=2_200, burn_in=200, thinning=4, preconditioned=True
)
# Our settings for networks, started at any `Network.initial(seed).mean`. SGLD's steps decay little, so they travel
# further in as many iterations; SGHMC's step is constant, and after 3,000 iterations as good as the paper's. They are
# stable while the largest curvature of U/n is below 2/scale (SGLD) or friction/scale (SGHMC): 4 and 5 here.
# No chain this short passes R̂ on a network's weights: use the draws to average predictions.
SAFE_BNN_SGLD = Chains(SGLD(StepSize(0.5, 0.15)), iterations=3_000, burn_in=2_500, thinning=25, batch_size=128, count=2)
SAFE_BNN_SGHMC = Chains(
    SGHMC(StepSize(0.04, 0.0), friction=0.2), iterations=3_000, burn_in=2_500, thinning=25, batch_size=128, count=2
)
# Chains of networks with a constant step, in four times as many iterations. Of those measured they mix best, and not
# well yet (decision 6). Minibatches keep them hot enough to move on, so that the law of their draws is not the
# posterior. A direction that the rows do not inform relaxes in n·prior_std²·friction/scale iterations (SGLD: friction
# 1), so a narrow prior mixes sooner: with SGHMC on 60,000 rows 240 for 0.04, and 3,375 for 0.15.
LONG_BNN_SGLD = Chains(SGLD(StepSize(0.3, 0.0)), iterations=12_000, burn_in=2_000, thinning=32, batch_size=128, count=2)
LONG_BNN_SGHMC = replace(LONG_BNN_SGLD, algorithm=SGHMC(StepSize(0.04, 0.0), friction=0.1, symplectic=True))
# The same with cyclical steps: cycles of 400, of which the first five are burnt in and each later gives eight draws.
# They visit modes, but their draws mix less, as only those of the sampling stage are kept.
CYCLICAL_BNN_SGLD = Chains(
    SGLD(Cyclical(0.4, length=400, exploration=0.5)),
    iterations=12_000,
    burn_in=2_000,
    thinning=25,
    batch_size=128,
    count=2,
)
CYCLICAL_BNN_SGHMC = replace(
    CYCLICAL_BNN_SGLD,
    algorithm=SGHMC(Cyclical(0.1, length=400, exploration=0.5), friction=0.06, symplectic=True),
)


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws, their diagnostics, and the share of the iterations after burn-in at which a chain moved."""

    sample_set: SampleSet
    diagnostics: Diagnostics
    acceptance: float = 1.0


def sample(
    likelihood: Likelihood,
    data: Tensor,
    start: Tensor,
    config: Chains,
    generator: torch.Generator,
    on_step: OnStep | None = None,
) -> Sampled:
    """Draw from p(θ | data) by parallel chains, and diagnose the draws.

    `start` is one θ for all chains, at the mode or near it, or one for each: (chains, p). `on_step(iteration,
    step_size)` is called after every iteration. Draws that fail their diagnostics are returned too: read
    `diagnostics.warning` before using them.
    """
    _check(likelihood, data, start, config)
    coordinates = _coordinates(likelihood, data, start, config)
    energy = coordinates.pull_back(_energy(likelihood, data, config.batch_size, generator))
    starts = coordinates.start
    if start.ndim == 1:
        origin = starts.expand(config.count, -1)
        starts = origin + normal(config.jitter**2 / len(data), origin, generator)
    thinned, moves, previous = [], 0.0, starts
    for iteration, position in enumerate(_walk(config, energy, starts, len(data), generator), 1):
        theta = coordinates.theta(position)
        _check_size(theta, start, config, iteration)
        if on_step is not None:
            on_step(iteration, _step_size(config.algorithm, iteration, len(data)))
        if config.is_draw(iteration):
            thinned.append(theta)
        if iteration > config.burn_in:
            moves += float((position != previous).any(1).double().mean())
        previous = position
    draws = torch.stack(thinned, 1)  # (chains, draws, p)
    sample_set = _sample_set(draws)
    if isinstance(likelihood, Network):
        diagnostics = diagnose_network(likelihood, sample_set, data)
    else:
        diagnostics = diagnose(draws, _checked_gradients(likelihood, data, draws, config, generator))
    return Sampled(sample_set, diagnostics, moves / (config.iterations - config.burn_in))


def walk_chains(
    likelihood: Likelihood, data: Tensor, thetas: Tensor, origin: Tensor, config: Chains, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield θ of all chains after each of `config.iterations`, from one θ for each on, a row of `thetas`.

    `origin` is where the coordinates of preconditioned chains are looked for. Nothing is burnt in or thinned here.
    """
    _check(likelihood, data, origin, config)
    coordinates = _coordinates(likelihood, data, origin, config)
    energy = coordinates.pull_back(_energy(likelihood, data, config.batch_size, generator))
    starts = coordinates.position(thetas)
    for iteration, position in enumerate(_walk(config, energy, starts, len(data), generator), 1):
        theta = coordinates.theta(position)
        _check_size(theta, origin, config, iteration)
        yield theta


def _walk(config: Chains, energy: Energy, starts: Tensor, rows: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the positions of the chains at each iteration."""
    algorithm, curvature = config.algorithm, float(rows) if config.preconditioned else 0.0
    if isinstance(algorithm, HMC):
        positions = algorithm.walk(energy, starts, generator, curvature)
    elif isinstance(algorithm, PriorHMC):
        positions = algorithm.walk(energy, starts, generator)
    else:
        positions = algorithm.walk(lambda position: energy(position)[1], starts, rows, generator, curvature)
    return islice(positions, config.iterations)


def _step_size(algorithm: Algorithm, iteration: int, rows: int) -> float:
    return algorithm.angle if isinstance(algorithm, HMC | PriorHMC) else algorithm.step_size.at(iteration, rows)


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """Coordinates ψ with θ = origin + ψ basis; without a basis, θ = ψ. Rows are chains."""

    origin: Tensor
    basis: Tensor | None

    @property
    def start(self) -> Tensor:
        return self.origin if self.basis is None else torch.zeros_like(self.origin)

    def theta(self, position: Tensor) -> Tensor:
        return position if self.basis is None else self.origin + position @ self.basis

    def position(self, theta: Tensor) -> Tensor:
        """Return ψ, of which `theta` is the inverse."""
        return theta if self.basis is None else torch.linalg.solve(self.basis, theta - self.origin, left=False)

    def pull_back(self, energy: Energy) -> Energy:
        """Return U and ∇_ψ U as a function of ψ, from U and ∇_θ U as a function of θ."""
        basis = self.basis
        if basis is None:
            return energy

        def pulled_back(position: Tensor) -> tuple[Tensor, Tensor]:
            values, gradients = energy(self.theta(position))
            return values, gradients @ basis.T

        return pulled_back


def _coordinates(likelihood: Likelihood, data: Tensor, start: Tensor, config: Chains) -> _Coordinates:
    """Return coordinates ψ. With H = CCᵀ, the basis √n C⁻¹ makes their Hessian n I."""
    if not config.preconditioned:
        return _Coordinates(start, None)
    laplace = fit_laplace(Potential(likelihood, data), start)
    identity = torch.eye(len(start), dtype=start.dtype, device=start.device)
    inverse = torch.linalg.solve_triangular(torch.linalg.cholesky(laplace.hessian), identity, upper=False)
    return _Coordinates(laplace.mode, math.sqrt(len(data)) * inverse)


def _energy(likelihood: Likelihood, data: Tensor, batch_size: int | None, generator: torch.Generator) -> Energy:
    """Return Ũ(θ) = -(n/|batch|) Σ_batch log p(z | θ) - log p(θ) with its gradient, and its own batch for each chain.

    Each row's part is computed in the precision of the rows, their sum and the prior in float64, as HMC compares them.
    The chains stay in float64, as their steps may vanish in float32.
    """

    def potential(theta: Tensor, rows: Tensor) -> Tensor:
        misfits = -likelihood.log_likelihood(theta.to(rows.dtype), rows)
        return len(data) / len(rows) * misfits.sum(dtype=theta.dtype) - likelihood.log_prior(theta)

    batched = likelihood.parameter_count <= _MAX_BATCHED_PARAMETERS
    evaluate = _evaluate_batched if batched else _evaluate_looped

    def energy(theta: Tensor) -> tuple[Tensor, Tensor]:
        if batch_size is None:
            return evaluate(potential, theta, data)
        batches = _batches(len(theta), batch_size, len(data), generator).to(data.device)
        return evaluate(potential, theta, data[batches])

    return energy


def _evaluate_batched(potential: _Potential, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the energies of all chains by one call. `rows` are (rows, columns), or (chains, rows, columns)."""
    at = theta.detach().requires_grad_()
    values = vmap(potential, in_dims=(0, 0 if rows.ndim == 3 else None))(at, rows)
    return values.detach().to(theta.dtype), torch.autograd.grad(values.sum(), at)[0]


def _evaluate_looped(potential: _Potential, theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same, chain by chain: faster for large models, since convolutions are slow with batched weights."""
    batches = rows.expand(len(theta), *rows.shape[-2:])
    leaves = [at.detach().requires_grad_() for at in theta]
    values = [potential(at, batch) for at, batch in zip(leaves, batches, strict=True)]
    gradients = [torch.autograd.grad(value, at)[0] for value, at in zip(values, leaves, strict=True)]
    return torch.stack(values).detach().to(theta.dtype), torch.stack(gradients)


def _batches(chains: int, size: int, rows: int, generator: torch.Generator) -> Tensor:
    """Return `size` different rows for each chain, every subset equally likely."""
    return torch.rand(chains, rows, generator=generator, device=generator.device).topk(size).indices


def _checked_gradients(
    likelihood: Likelihood, data: Tensor, draws: Tensor, config: Chains, generator: torch.Generator
) -> Tensor:
    """Return ∇U at some draws of each chain, from all rows if affordable, else unbiased from fresh minibatches."""
    count, rows = _checked_sizes(config, len(data))
    energy = _energy(likelihood, data, None if rows == len(data) else rows, generator)
    return torch.stack([energy(theta)[1] for theta in evenly_spaced_draws(draws, count).unbind(1)], 1)


def _checked_sizes(config: Chains, rows: int) -> tuple[int, int]:
    """Return the number of draws per chain and of rows per draw: all rows of each, if sampling read them all.

    With minibatches, many draws with few rows each, together a share of the rows that sampling reads: the noise of the
    rows depends only on their total, that of the draws on their number.
    """
    if config.batch_size is None:
        return min(_CHECKED_DRAWS, config.draws_per_chain), rows
    affordable = max(1, config.iterations // _SAMPLING_PER_CHECK)
    count = min(_CHECKED_DRAWS, config.draws_per_chain, affordable)
    return count, min(rows, _CHECKED_ROWS, config.batch_size * affordable // count)


def _sample_set(draws: Tensor) -> SampleSet:
    chains, length, _ = draws.shape
    return SampleSet(draws.flatten(0, 1), torch.arange(chains, device=draws.device).repeat_interleave(length))


def _check_size(theta: Tensor, start: Tensor, config: Chains, iteration: int) -> None:
    # Written so that NaN fails too.
    if not float(theta.abs().max()) <= _EXPLODED * max(1.0, float(start.abs().max())):
        raise NumericalFailure(f"the chains exploded at iteration {iteration}: shorten the steps of {config.algorithm}")


def _check(likelihood: Likelihood, data: Tensor, start: Tensor, config: Chains) -> None:
    likelihood.check_data(data)
    parameters = likelihood.parameter_count
    if start.shape not in ((parameters,), (config.count, parameters)):
        raise InvalidInput(
            f"start has shape {tuple(start.shape)}: pass one θ of length {parameters}, or one for each of the "
            f"{config.count} chains"
        )
    if config.preconditioned and start.ndim != 1:
        raise InvalidInput("preconditioned chains start around one mode: pass one θ")
    if start.dtype != torch.float64 or not bool(torch.isfinite(start).all()):
        raise InvalidInput("start is not finite torch.float64: convert it, or train again")
    if config.batch_size is not None and config.batch_size > len(data):
        raise InvalidInput(f"batch_size {config.batch_size} exceeds the {len(data)} rows: pass None to use every row")
