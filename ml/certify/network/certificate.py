"""What is left of forgotten rows in a network, estimated: how far the processed posterior is from a minimum, in nats.

Training leaves a network with a gradient many times that of a few rows. That is nobody's influence, and stays: what is
sought is the minimum of the retained energy tilted to the slope that influence supposes (`ml.forgetting.network`),

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ        g = Σ_{z∈S'} ∇h(0, z)

F is KL(q ‖ retained posterior) but for a constant, so F̃(Δ⁻) - min F̃ is the divergence that the processed posterior has
in excess of the least one. A network's F̃ is not convex, and on a sample it falls by 10⁵ nats far away. So the minimum
is that of the linearised network, F̃(Δ) ≈ ½ ΔᵀAΔ - gᵀΔ, and how far the network is from linear is measured:

    excess = ½ rᵀA⁻¹r    r = AΔ⁻ - g    A = n/s Σ_s Jᵀ(diag p - ppᵀ)J + ∇²f    on a sample s of the n retained rows

A is unbiased and the least value of a function is concave in it, so the excess of a sample is too large on average, the
more so the fewer its rows (W. Mak, D. Morton and R. Wood, 1999): directions to which they are blind make it larger, not
smaller. Its standard error is that of the rows between Δ⁻ and the sample's own minimum (G. Bayraksan and D. Morton,
2006). r is of the same rows as A: r of all rows would meet directions to which the sample is blind.

If the network's own gradient is AΔ⁻ + e with ‖e‖ ≤ k‖Δ⁻‖ in the norms of A⁻¹ and A, and its curvature is at least
(1 - c)A, then its own excess is at most ½(√(rᵀA⁻¹r) + k√(Δ⁻ᵀAΔ⁻))²/(1 - c). Other rows measure k along Δ⁻, and c there
and on the way to the minimum (`ml.certify.network.validation`): two directions of many. So the estimate is enlarged by them,
and still speaks of the linearised network.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.kantorovich import NOT_PROVED, paper_epsilon
from ml.certify.network.validation import NORMAL, Judged, judge
from ml.certify.network.sample import NetworkSample, split_rows
from ml.certify.network.theorem import sampled_theorem
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_positions, retained_rows
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.regression import check_count
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl
from ml.solvers import solve_conjugate_gradients

REFERENCE = (
    "the minimum of the retained energy of the network linearised at the posterior before, with what training had left "
    "over of its slope taken as given"
)
DIRECTION = (
    "epsilon estimates, for the linearised network, KL(processed ‖ retained posterior) less KL(reference ‖ retained "
    "posterior); the network's own excess may be larger"
)
ESTIMATED = (
    "The excess is estimated from a sample of the retained rows; the 95 % of its interval are of that sampling and of "
    "nothing else. It is not a bound.",
    "The energy of a network is not convex: the reference is a minimum of the linearised network, and how far the "
    "network is from linear was tried along two directions only. Its own excess may be larger.",
    "What training left over of its slope is not corrected: the reference is free of influence, not better trained.",
    "What earlier deletions left of their own rows counts as left over by training: of that their certificates speak, "
    "and this one does not.",
    *NOT_PROVED,
)

_TOLERANCE = 1e-6
_PARTS = 8
_GRADIENT_ROWS = 6144  # a product takes longer than all else that judges


@dataclass(frozen=True)
class NetworkCheck:
    """`rows` to find the minimum on, `others` to judge it, and the products with A that a solve may take.

    `theorem_rows` of the former show whether Newton-Kantorovich has something to say.

    All rows do both, if there are no more. The more rows, the smaller the excess, and the nearer to the truth.
    """

    draws: int = 32
    rows: int = 2048
    others: int = 16384
    products: int = 26
    theorem_rows: int = 256
    most_unsolved: float = 0.3
    most_nonlinear: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("draws", 2), ("rows", 2), ("others", 2), ("products", 2), ("theorem_rows", 2)):
            check_count(name, getattr(self, name), least)
        if not 0 < self.most_unsolved < 1 or not 0 < self.most_nonlinear < 1:
            raise InvalidInput(
                f"most_unsolved is {self.most_unsolved} and most_nonlinear {self.most_nonlinear}: "
                "pass shares between 0 and 1"
            )


CHECK = NetworkCheck()


@dataclass(frozen=True)
class NetworkConstants:
    """In nats, but for `softer` and `deviation`, which are c and k, and `pull_norm`, which is g in units of 1/σ.

    `excess_of_nothing` is that of the posterior before: how much of it the step took away is what the step was worth.
    `made` is ½ΔᵀAΔ of the step that was made. `divergence` is KL(processed ‖ minimum of the sample), which lies farther
    away than that of all rows; `divergence_reverse` is the other direction, and `paper_epsilon` the paper's bound with
    that distance for the one that nobody knows: infinite where it exceeds the narrowest width. `gradient` is r in units
    of 1/σ, on the rows that judge, and `gradient_margin` how far sampling may have put it off. `lambda_min`,
    `lipschitz` and `kantorovich` are those of `ml.certify.network.theorem`, in the same units: from ½ on, the theorem
    that proves the bounds of smaller models says nothing of this network.
    """

    excess: float
    excess_of_nothing: float
    unsolved: float
    standard_error: float
    softer: float
    deviation: float
    widths: float
    made: float
    divergence: float
    divergence_reverse: float
    paper_epsilon: float
    gradient: float
    gradient_margin: float
    lambda_min: float
    lipschitz: float
    kantorovich: float
    pull_norm: float
    rows: int
    products: int
    seconds: float


def certify_network(
    network: Network,
    before: MeanFieldGaussian,
    after: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: NetworkCheck = CHECK,
) -> Certificate:
    """Estimate what `after` lacks of having forgotten the rows at positions `forgotten`, which `before` had seen."""
    started = time.perf_counter()
    for posterior in (before, after):
        network.check_posterior(posterior)
    network.check_data(data)
    network.check_data(retained_rows(data, forgotten))
    energy = NetworkEnergy(network, data, frozen_draws(before, recipe.draws, seed=0))
    drift = after.mean - before.mean
    pull = energy.misfit_gradient(torch.zeros_like(drift), forgotten)
    retained = retained_positions(data, forgotten)
    rows, others = split_rows(retained, recipe.rows, recipe.others, generator)
    sample = NetworkSample(energy, rows, len(retained))
    newton = _solve(sample, drift, pull, before.std, recipe.products)
    judged = judge(NetworkSample(energy, others, len(retained)), drift, pull, newton.lowest)
    widths, widths_reverse = _widths(energy, before, after, forgotten, generator)
    gradient, margin = _gradient(energy, others[:_GRADIENT_ROWS], len(retained), drift, pull, before.std)
    apart = newton.lowest - drift
    few = rows[: recipe.theorem_rows]
    theorem = sampled_theorem(energy, before.std, few, len(retained), drift, apart, generator)
    assumptions = _assumptions(newton, judged, recipe)
    holds = all(assumption.holds for assumption in assumptions)
    high = _worst(newton, judged) + widths if holds else math.inf
    return Certificate(
        epsilon=high,
        epsilon_reverse=math.nan,
        level="estimated" if holds else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(retained),
        assumptions=assumptions,
        constants=NetworkConstants(
            excess=newton.excess,
            excess_of_nothing=newton.excess + float(pull.dot(drift)) - newton.made,
            unsolved=newton.unsolved,
            standard_error=newton.standard_error,
            softer=judged.softer,
            deviation=judged.deviation,
            widths=widths,
            made=newton.made,
            divergence=0.5 * float((apart / before.std).square().sum()) + widths,
            divergence_reverse=0.5 * float((apart / after.std).square().sum()) + widths_reverse,
            paper_epsilon=paper_epsilon(after, float(apart.norm())),
            gradient=gradient,
            gradient_margin=margin,
            **asdict(theorem),
            pull_norm=float((pull * before.std).norm()),
            rows=len(rows),
            products=newton.products,
            seconds=time.perf_counter() - started,
        ),
        not_proved=ESTIMATED,
        interval=(min(judged.least, high), high) if holds else None,
    )


@dataclass(frozen=True, eq=False)
class _Newton:
    """The minimum of a sample; `unsolved` is what the later half of the products added to the excess."""

    lowest: Tensor
    excess: float
    unsolved: float
    standard_error: float
    made: float
    products: int


def _solve(sample: NetworkSample, drift: Tensor, pull: Tensor, std: Tensor, products: int) -> _Newton:
    """½ rᵀA⁻¹r by conjugate gradients, which approach it from below."""
    bent = sample.product(drift)
    residual, made, reached = bent - pull, 0.5 * float(drift.dot(bent)), [0.0]
    solution = solve_conjugate_gradients(
        sample.product,
        residual,
        _TOLERANCE,
        products,
        std.square().reciprocal(),
        lambda x: reached.append(0.5 * float(residual.dot(x))),
    )
    unsolved = 0.0 if solution.converged else reached[-1] - reached[len(reached) // 2]
    lowest = drift - solution.x
    here, there = sample.tangent(drift), sample.tangent(lowest)
    error = sample.standard_error(0.5 * (here.curved(here) - there.curved(there)))
    return _Newton(lowest, reached[-1], unsolved, error, made, solution.iterations)


def _worst(newton: _Newton, judged: Judged) -> float:
    linear = math.sqrt(newton.excess + newton.unsolved + NORMAL * newton.standard_error)
    return (linear + judged.deviation * math.sqrt(newton.made)) ** 2 / (1 - judged.softer)


def _widths(
    energy: NetworkEnergy,
    before: MeanFieldGaussian,
    after: MeanFieldGaussian,
    forgotten: Tensor,
    generator: torch.Generator,
) -> tuple[float, float]:
    """½ Σ (ρ - 1 - ln ρ), ρ = σ⁻²/σ*²: what wrong widths add to the excess where the energy is quadratic.

    And the same with 1/ρ. 1/σ*² is 1/σ² less what the rows gave to it. That is an estimate: anything from nothing to
    twice as much is allowed.
    """
    precision, prior = before.std.square().reciprocal(), energy.network.prior_std**-2
    given = energy.fisher_diagonal(forgotten, generator)
    least = (precision - 2 * given).maximum(precision.clamp(max=prior))
    ends = torch.stack([before.std, least.rsqrt()])
    here, still = after.std.expand_as(ends), torch.zeros_like(before.std)
    forward, reverse = gaussian_kl(still, here, ends), gaussian_kl(still, ends, here)
    return float(forward.amax(0).sum()), float(reverse.amax(0).sum())


def _gradient(
    energy: NetworkEnergy, rows: Tensor, total: int, drift: Tensor, pull: Tensor, std: Tensor
) -> tuple[float, float]:
    """‖r‖ in units of 1/σ, and its margin at 95 %: parts of the rows show by their spread how far their mean is off."""
    parts = rows.chunk(_PARTS)
    found = torch.stack([std * (NetworkSample(energy, part, total).product(drift) - pull) for part in parts])
    shares = torch.tensor([len(part) / len(rows) for part in parts]).to(found)
    missing = 1 - len(rows) / total
    error = (found.var(0).sum() / len(parts) * missing).sqrt()
    return float((shares @ found).norm()), NORMAL * float(error)


def _assumptions(newton: _Newton, judged: Judged, recipe: NetworkCheck) -> tuple[Assumption, ...]:
    allowed, nonlinear = recipe.most_unsolved * newton.excess, max(judged.softer, judged.deviation)
    return (
        Assumption(
            "solved",
            newton.unsolved <= allowed,
            newton.unsolved,
            allowed,
            "the solver had come near the minimum: its later half added little",
        ),
        Assumption(
            "linearised",
            nonlinear < recipe.most_nonlinear,
            nonlinear,
            recipe.most_nonlinear,
            "the network is near its linearisation along the step made, and hardly softer along what is missing",
        ),
    )
