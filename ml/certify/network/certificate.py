"""Certificate of a network: an estimate of how far the processed posterior lies above a minimum, in nats.

Training leaves a network with a gradient that is no row's influence, so it is not corrected. The reference is the
minimum of the retained energy tilted to the slope that the influence step assumes (`ml.models.tilted_energy`),

    F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ        g = Σ_{z∈S'} ∇h(0, z)

For a network at rest, ∇F(0, S) = 0, this is F(Δ, R) itself. F equals KL(q ‖ retained posterior) up to a constant, so
F̃(Δ⁻) - min F̃ is the excess of the processed posterior's divergence over the smallest one. It is not taken from a
linearised network: the network's own F̃ is descended from Δ⁻ (`ml.inference.tilted_descent`). The fall is a lower bound
of the excess, and ½rᵀA⁻¹r where the descent ends is what the network linearised there has left. The estimate is

    excess ≤ INFLATION (fall + remaining) + rounding

INFLATION was set on computed truths, and the share that it covers measured on others (`lethe bench coverage --family
network`). A descent that does not come to an end, or falls much farther than the linearised network says, shows that
the posterior is near no minimum. Then nothing is certified.

F̃ is that of all retained rows. A sample of them does not do: on nine tenths of 1,000 rows, a perceptron of 31 weights
at rest on all rows fell by 47 nats where the truth was 0.02. A network too large for hundreds of passes over its rows
(`ml.models.network_energy.can_be_read_whole`) therefore gets no estimate, and its deletions are retrained.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.kantorovich import NOT_PROVED, paper_epsilon
from ml.certify.network.kantorovich import sample_constants
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_positions, retained_rows
from ml.inference.tilted_descent import Descent, DescentLimits, descend_tilted
from ml.models.checks import check_count
from ml.models.network import Network
from ml.models.network_energy import FROZEN_DRAWS, NetworkEnergy, can_be_read_whole, frozen_energy
from ml.models.tilted_energy import TiltedEnergy
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl

REFERENCE = (
    "the minimum of the retained energy, as a function of the means under frozen noise, that descent from the "
    "processed posterior reaches, with what training had left over of its slope taken as given"
)
DIRECTION = (
    "epsilon estimates KL(processed ‖ retained posterior) less KL(reference ‖ retained posterior), for the network "
    "itself and not for its linearisation"
)
ESTIMATED = (
    "The excess is estimated: what the descent of the network's own energy gained, enlarged by a factor that covered "
    "computed truths of small networks. It is not a bound.",
    "The energy of a network is not convex: the reference is the minimum that descent reaches from here. Lower ones "
    "may lie elsewhere.",
    "The energy is an average over frozen noise, and its widths are held: the excess due to wrong widths is added as "
    "if the energy were quadratic.",
    "What training left over of its slope is not corrected: the reference is free of influence, not better trained.",
    "What earlier deletions left of their own rows counts as left over by training: of that their certificates speak, "
    "and this one does not.",
    *NOT_PROVED,
)
TOO_LARGE = (
    "the network has too many parameters and rows for an estimate, which takes hundreds of passes over all rows: "
    "deletions are retrained. Register an ensemble, or a Bayesian last layer, for cheaper ones"
)
INFLATION = 1.2
"""Factor on what the descent found and what may remain. In nine computed truths that were looked at when it was set,
the fall alone was 0.998 to 1 times the truth wherever the truth was above 0.001 nats.
"""

_NEGLIGIBLE = 0.01  # nats that may remain whatever the whole; they are part of the estimate
_ENOUGH = 0.01  # share of the whole fall below which a round is the last


@dataclass(frozen=True)
class CertificationRecipe:
    """How much work a certificate may take, and the limits that its assumptions must keep.

    The descent takes at most `max_rounds` rounds, and each of its two solves `max_products` products with A. The
    constants of Newton-Kantorovich are sampled on `theorem_rows`. `max_remaining` is the share of the whole excess that
    the descent may have left, `max_nonlinear` how many times the excess of the linearised network the whole may be.
    """

    draws: int = FROZEN_DRAWS
    max_rounds: int = 12
    max_products: int = 75
    theorem_rows: int = 256
    max_remaining: float = 0.3
    max_nonlinear: float = 10.0

    def __post_init__(self) -> None:
        for name in ("draws", "max_rounds", "max_products", "theorem_rows"):
            check_count(name, getattr(self, name), 2)
        if not 0 < self.max_remaining < 1 <= self.max_nonlinear:
            raise InvalidInput(
                f"max_remaining is {self.max_remaining} and max_nonlinear {self.max_nonlinear}: "
                "pass a share between 0 and 1, and a factor of at least 1"
            )

    @property
    def limits(self) -> DescentLimits:
        return DescentLimits(self.max_rounds, self.max_products, share=_ENOUGH)


DEFAULT_RECIPE = CertificationRecipe()


@dataclass(frozen=True)
class NetworkConstants:
    """Numbers behind the estimate.

    They are in nats, except that `pull_norm` (of g) and `gradient` (of ∇F̃ at Δ⁻) are in units of 1/σ.

    `excess` is how far the network's own F̃ fell in `steps` rounds, `unsolved` what may remain below
    (`ml.inference.tilted_descent`), and `linearised` ½rᵀA⁻¹r where the descent began, with the solver's rest.
    `excess_of_nothing` is the excess of the posterior before: the difference is what the step gained. `made` is ½ΔᵀAΔ
    of the step, `widths` the excess due to wrong widths. `divergence` is KL(processed ‖ where the descent ended);
    `divergence_reverse` is the other direction. `paper_epsilon` is the paper's bound with that distance in place of the
    unknown one: infinite if it exceeds the smallest width. `lambda_min`, `lipschitz` and `kantorovich` come from
    `ml.certify.network.kantorovich`, in units of the widths: if `kantorovich` is ½ or more, the theorem behind the
    bounds of smaller models does not apply to this network.
    """

    excess: float
    excess_of_nothing: float
    unsolved: float
    linearised: float
    rounding: float
    widths: float
    made: float
    divergence: float
    divergence_reverse: float
    paper_epsilon: float
    gradient: float
    lambda_min: float
    lipschitz: float
    kantorovich: float
    pull_norm: float
    rows: int
    reads: int
    steps: int
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

    `before` is the posterior trained with these rows. NumericalFailure if the network is too large for an estimate.
    """
    started = time.perf_counter()
    case = _prepare(network, before, after, data, forgotten, recipe.draws)
    tilted = TiltedEnergy(case.energy, case.retained, case.pull)
    descent = descend_tilted(tilted, case.drift, before.std, recipe.limits)
    order = torch.randperm(len(case.retained), generator=generator, device=generator.device).to(case.retained.device)
    theorem_rows = case.retained[order[: recipe.theorem_rows]]
    constants = _constants(case, tilted, descent, theorem_rows, generator, started)
    assumptions = _assumptions(descent, constants, recipe)
    holds = all(assumption.holds for assumption in assumptions)
    high = INFLATION * (descent.fall + descent.remaining) + constants.rounding + constants.widths
    return Certificate(
        epsilon=high if holds else math.inf,
        epsilon_reverse=math.nan,
        level="estimated" if holds else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(case.retained),
        assumptions=assumptions,
        constants=constants,
        not_proved=ESTIMATED,
        interval=(descent.fall, high) if holds else None,
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
    if not can_be_read_whole(network, len(data)):
        raise NumericalFailure(TOO_LARGE)
    energy = frozen_energy(network, before, data, draws)
    pull = energy.misfit_gradient(torch.zeros_like(before.mean), forgotten)
    return _Case(before, after, energy, forgotten, retained_positions(data, forgotten), pull)


def _constants(
    case: _Case,
    tilted: TiltedEnergy,
    descent: Descent,
    theorem_rows: Tensor,
    generator: torch.Generator,
    started: float,
) -> NetworkConstants:
    widths, widths_reverse = _width_excess(case, generator)
    gap, std, origin = descent.drift - case.drift, case.before.std, torch.zeros_like(case.drift)
    theorem = sample_constants(case.energy, std, theorem_rows, len(case.retained), case.drift, gap, generator)
    return NetworkConstants(
        excess=descent.fall,
        excess_of_nothing=tilted.value(origin) - tilted.value(descent.drift),
        unsolved=descent.remaining,
        linearised=descent.linearised,
        rounding=tilted.rounding(),
        widths=widths,
        made=0.5 * float(case.drift.dot(tilted.curvature(origin)(case.drift))),
        divergence=0.5 * float((gap / std).square().sum()) + widths,
        divergence_reverse=0.5 * float((gap / case.after.std).square().sum()) + widths_reverse,
        paper_epsilon=paper_epsilon(case.after, float(gap.norm())),
        gradient=float((std * tilted.gradient(case.drift)).norm()),
        **asdict(theorem),
        pull_norm=float((case.pull * std).norm()),
        rows=len(tilted.rows),
        reads=case.energy.reads,
        steps=descent.rounds,
        products=descent.products,
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


def _assumptions(descent: Descent, constants: NetworkConstants, recipe: CertificationRecipe) -> tuple[Assumption, ...]:
    whole = descent.fall + descent.remaining
    remaining_limit = max(recipe.max_remaining * whole, _NEGLIGIBLE, constants.rounding)
    nonlinear_limit = max(recipe.max_nonlinear * descent.linearised, _NEGLIGIBLE, constants.rounding)
    return (
        Assumption(
            "solved",
            descent.remaining <= remaining_limit,
            descent.remaining,
            remaining_limit,
            "the descent of the network's own energy came to an end: an upper bound on what the linearised network has "
            "left there",
        ),
        Assumption(
            "linearised",
            whole <= nonlinear_limit,
            whole,
            nonlinear_limit,
            "the network's own energy did not fall much farther than that of the linearised network: the posterior is "
            "near a minimum",
        ),
    )
