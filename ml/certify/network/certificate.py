"""Certificate of a network: an estimate of how far the processed posterior lies above a minimum, in nats.

Training leaves a network with a gradient many times larger than that of a few rows. This remainder is not the influence
of any row, so it is not corrected. The reference is the minimum of the retained energy tilted to the slope that the
influence step assumes (`ml.forgetting.network`),

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ        g = Σ_{z∈S'} ∇h(0, z)

F equals KL(q ‖ retained posterior) up to a constant, so F̃(Δ⁻) - min F̃ is the excess of the processed posterior's
divergence over the smallest one. A network's F̃ is not convex, and on a sample of rows it falls by 10⁵ nats far away.
The minimum is therefore that of the linearised network, F̃(Δ) ≈ ½ ΔᵀAΔ - gᵀΔ, and the deviation from linearity is
measured:

    excess = ½ rᵀA⁻¹r    r = AΔ⁻ - g    A = n/s Σ_s Jᵀ(diag p - ppᵀ)J + ∇²f    on a sample s of the n retained rows

A is unbiased and the minimum of a function is concave in it, so a sample overestimates the excess on average, the more
so the fewer rows it has (W. Mak, D. Morton and R. Wood, 1999): directions that the rows do not cover make the excess
larger, not smaller. Its standard error is that of the rows' differences between Δ⁻ and the sample's own minimum
(G. Bayraksan and D. Morton, 2006). r is computed from the same rows as A, because r of all rows would have components
in directions that the sample does not cover.

If the network's own gradient is AΔ⁻ + e with ‖e‖ ≤ k‖Δ⁻‖ in the norms of A⁻¹ and A, and its curvature is at least
(1 - c)A, then its own excess is at most ½(√(rᵀA⁻¹r) + k√(Δ⁻ᵀAΔ⁻))²/(1 - c). Held-out rows measure k along Δ⁻, and c
along Δ⁻ and on the way to the minimum (`ml.certify.network.validation`): two directions out of many. The estimate is
enlarged accordingly, but remains one for the linearised network.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.kantorovich import NOT_PROVED, paper_epsilon
from ml.certify.network.excess import Minimum, find_minimum, upper_limit
from ml.certify.network.kantorovich import sample_constants
from ml.certify.network.sample import NetworkSample, split_rows
from ml.certify.network.validation import NORMAL_95, Validation, validate
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_positions, retained_rows
from ml.models.checks import check_count
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl

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

_GRADIENT_PARTS = 8
_MAX_GRADIENT_ROWS = 6144  # a product with A is the most expensive part of the validation


@dataclass(frozen=True)
class CertificationRecipe:
    """How much work a certificate may take, and the limits that its assumptions must keep.

    The minimum is found on `rows` with at most `max_products` products with A, and validated on `held_out_rows`. If the
    retained rows are fewer than both together, all of them serve both purposes. More rows give a smaller and more
    accurate excess. The constants of Newton-Kantorovich are sampled on the first `theorem_rows` of `rows`.
    """

    draws: int = 32
    rows: int = 2048
    held_out_rows: int = 16384
    max_products: int = 100  # LeNet-5 takes about 75
    theorem_rows: int = 256
    max_unsolved: float = 0.3
    max_nonlinear: float = 0.5

    def __post_init__(self) -> None:
        for name in ("draws", "rows", "held_out_rows", "max_products", "theorem_rows"):
            check_count(name, getattr(self, name), 2)
        if not 0 < self.max_unsolved < 1 or not 0 < self.max_nonlinear < 1:
            raise InvalidInput(
                f"max_unsolved is {self.max_unsolved} and max_nonlinear {self.max_nonlinear}: "
                "pass shares between 0 and 1"
            )


DEFAULT_RECIPE = CertificationRecipe()


@dataclass(frozen=True)
class NetworkConstants:
    """Numbers behind the estimate.

    They are in nats, except that `softer` and `deviation` are c and k, and that `pull_norm` (of g), `gradient` (r on
    held-out rows) and `gradient_margin` (its sampling error) are in units of 1/σ.

    ½rᵀA⁻¹r of the sample lies between `excess` and `excess + unsolved` (`ml.solvers.conjugate_gradients`).
    `excess_of_nothing` is the excess of the posterior before: the difference is what the step gained. `made` is ½ΔᵀAΔ
    of the step, `widths` the excess due to wrong widths. `divergence` is KL(processed ‖ minimum of the sample), which
    lies farther away than the minimum of all rows; `divergence_reverse` is the other direction. `paper_epsilon` is the
    paper's bound with that distance in place of the unknown one: infinite if it exceeds the smallest width.
    `lambda_min`, `lipschitz` and `kantorovich` come from `ml.certify.network.kantorovich`, in units of the widths: if
    `kantorovich` is ½ or more, the theorem behind the bounds of smaller models does not apply to this network.
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


@dataclass(frozen=True, eq=False)
class _Case:
    """A processed posterior to certify: its drift Δ⁻ from the posterior before, g, and the retained rows."""

    before: MeanFieldGaussian
    after: MeanFieldGaussian
    energy: NetworkEnergy
    forgotten: Tensor
    retained: Tensor
    pull: Tensor

    @property
    def drift(self) -> Tensor:
        return self.after.mean - self.before.mean

    def sample(self, rows: Tensor) -> NetworkSample:
        return NetworkSample(self.energy, rows, len(self.retained))


def certify_network(
    network: Network,
    before: MeanFieldGaussian,
    after: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    generator: torch.Generator,
    recipe: CertificationRecipe = DEFAULT_RECIPE,
) -> Certificate:
    """Estimate the influence that the rows at positions `forgotten` still have on `after`.

    `before` is the posterior trained with these rows.
    """
    started = time.perf_counter()
    case = _prepare(network, before, after, data, forgotten, recipe.draws)
    rows, held_out = split_rows(case.retained, recipe.rows, recipe.held_out_rows, generator)
    minimum = find_minimum(case.sample(rows), case.drift, case.pull, before.std, recipe.max_products)
    validation = validate(case.sample(held_out), case.drift, case.pull, minimum.drift)
    theorem_rows = rows[: recipe.theorem_rows]
    constants = _constants(case, minimum, validation, held_out, theorem_rows, generator, started)
    assumptions = _assumptions(minimum, validation, recipe)
    holds = all(assumption.holds for assumption in assumptions)
    high = upper_limit(minimum, validation) + constants.widths if holds else math.inf
    return Certificate(
        epsilon=high,
        epsilon_reverse=math.nan,
        level="estimated" if holds else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(case.retained),
        assumptions=assumptions,
        constants=constants,
        not_proved=ESTIMATED,
        interval=(min(validation.lower_limit, high), high) if holds else None,
    )


def _prepare(
    network: Network,
    before: MeanFieldGaussian,
    after: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    draws: int,
) -> _Case:
    for posterior in (before, after):
        network.check_posterior(posterior)
    network.check_data(data)
    network.check_data(retained_rows(data, forgotten))
    energy = NetworkEnergy(network, data, frozen_draws(before, draws, seed=0))
    pull = energy.misfit_gradient(torch.zeros_like(before.mean), forgotten)
    return _Case(before, after, energy, forgotten, retained_positions(data, forgotten), pull)


def _constants(
    case: _Case,
    minimum: Minimum,
    validation: Validation,
    held_out: Tensor,
    theorem_rows: Tensor,
    generator: torch.Generator,
    started: float,
) -> NetworkConstants:
    widths, widths_reverse = _width_excess(case, generator)
    gradient, margin = _residual_gradient(case, held_out[:_MAX_GRADIENT_ROWS])
    gap, std = minimum.drift - case.drift, case.before.std
    theorem = sample_constants(case.energy, std, theorem_rows, len(case.retained), case.drift, gap, generator)
    return NetworkConstants(
        excess=minimum.excess,
        excess_of_nothing=minimum.excess + float(case.pull.dot(case.drift)) - minimum.step_energy,
        unsolved=minimum.unsolved,
        standard_error=minimum.standard_error,
        softer=validation.softer,
        deviation=validation.deviation,
        widths=widths,
        made=minimum.step_energy,
        divergence=0.5 * float((gap / std).square().sum()) + widths,
        divergence_reverse=0.5 * float((gap / case.after.std).square().sum()) + widths_reverse,
        paper_epsilon=paper_epsilon(case.after, float(gap.norm())),
        gradient=gradient,
        gradient_margin=margin,
        **asdict(theorem),
        pull_norm=float((case.pull * std).norm()),
        rows=minimum.rows,
        products=minimum.products,
        seconds=time.perf_counter() - started,
    )


def _width_excess(case: _Case, generator: torch.Generator) -> tuple[float, float]:
    """Return ½ Σ (ρ - 1 - ln ρ), ρ = σ⁻²/σ*²: the excess due to wrong widths if the energy is quadratic.

    The second value is the same with 1/ρ. 1/σ*² is 1/σ² minus the precision contributed by the forgotten rows. That
    contribution is an estimate, so the worst case from zero to twice the estimate is taken.
    """
    precision, prior = case.before.std.square().reciprocal(), case.energy.network.prior_std**-2
    contributed = case.energy.fisher_diagonal(case.forgotten, generator)
    lowest = (precision - 2 * contributed).maximum(precision.clamp(max=prior))
    ends = torch.stack([case.before.std, lowest.rsqrt()])
    own, no_gap = case.after.std.expand_as(ends), torch.zeros_like(case.before.std)
    forward, reverse = gaussian_kl(no_gap, own, ends), gaussian_kl(no_gap, ends, own)
    return float(forward.amax(0).sum()), float(reverse.amax(0).sum())


def _residual_gradient(case: _Case, rows: Tensor) -> tuple[float, float]:
    """Return ‖r‖ in units of 1/σ and its margin at 95 %, from the spread between parts of the rows."""
    parts = rows.chunk(_GRADIENT_PARTS)
    residuals = torch.stack([case.before.std * (case.sample(part).product(case.drift) - case.pull) for part in parts])
    shares = torch.tensor([len(part) / len(rows) for part in parts]).to(residuals)
    unsampled_share = 1 - len(rows) / len(case.retained)
    error = (residuals.var(0).sum() / len(parts) * unsampled_share).sqrt()
    return float((shares @ residuals).norm()), NORMAL_95 * float(error)


def _assumptions(minimum: Minimum, validation: Validation, recipe: CertificationRecipe) -> tuple[Assumption, ...]:
    unsolved_limit = recipe.max_unsolved * minimum.excess
    nonlinearity = max(validation.softer, validation.deviation)
    return (
        Assumption(
            "solved",
            minimum.unsolved <= unsolved_limit,
            minimum.unsolved,
            unsolved_limit,
            "the solver had come near the minimum: an upper bound on what it left",
        ),
        Assumption(
            "linearised",
            nonlinearity < recipe.max_nonlinear,
            nonlinearity,
            recipe.max_nonlinear,
            "the network is near its linearisation along the step made, and hardly softer along what is missing",
        ),
    )
