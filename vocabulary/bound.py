"""Bound of a certificate: epsilon, its conditions, the numbers behind it, and the rungs that led to it."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from vocabulary.levels import CertifiedLevel, Level
from vocabulary.posterior_kinds import Reading
from vocabulary.references import Reference
from vocabulary.rungs import RungName
from vocabulary.signed_model import Count, Earlier, Flag, Real, Sha256, SignedModel


class Assumption(SignedModel):
    """A condition of the bound, as it was checked."""

    name: str = Field(description="Short name of the condition.")
    holds: Flag = Field(description="Whether it holds. In a certificate every condition does.")
    value: Real | None = Field(default=None, description="The number that was computed; null if not finite.")
    limit: Real | None = Field(default=None, description="The number that `value` is compared with; null if infinite.")
    meaning: str | Earlier = Field(default=None, description="The condition in words.")


class Constants(SignedModel):
    """The numbers behind a bound. A number that could not be computed, or is infinite, is null."""

    model_config = ConfigDict(extra="forbid")


class KantorovichConstants(Constants):
    """Constants of a proved bound (Newton-Kantorovich)."""

    may_be_absent = frozenset({"coordinates", "excess"})

    coordinates: str | Earlier = Field(
        default=None,
        description="Coordinates and norms of the numbers below. Absent in earlier certificates: there the coordinates "
        "are the variational parameters themselves, and all norms are Euclidean.",
    )
    gradient_norm: Real | None = Field(description="Norm of the gradient g of the retained energy.")
    newton_decrement: Real | None = Field(description="Square root of g·δ, where δ is the Newton step.")
    newton_step_norm: Real | None = Field(description="Upper bound η of the norm of δ, rounding included.")
    lambda_min: Real | None = Field(description="Lower bound m of the smallest eigenvalue of the Hessian.")
    lipschitz: Real | None = Field(description="Upper bound L of the third derivative in the ball of radius 2η.")
    kantorovich: Real | None = Field(description="k = Lη, in earlier certificates Lη/m. The bound needs k < 1/2.")
    radius: Real | None = Field(description="Euclidean distance within which the minimum lies.")
    rounding: Real | None = Field(description="What was added for floating-point rounding to each coordinate.")
    excess: Real | None = Field(
        default=None, description="In earlier certificates only: upper bound of the energy above its minimum, in nats."
    )
    paper_epsilon: Real | None = Field(description="The bound that the original paper's theorem gives, in nats.")


class NetworkConstants(Constants):
    """Constants of an estimate for a network."""

    may_be_absent = frozenset(
        {"softer", "deviation", "standard_error", "gradient_margin", "linearised", "rounding", "reads", "steps"}
    )

    excess: Real | None = Field(
        description="How far the network's own energy fell in the descent from the posterior, in nats; until 2026-11: "
        "excess of the linearised network on the sampled rows."
    )
    excess_of_nothing: Real | None = Field(description="The same for the posterior before forgetting.")
    unsolved: Real | None = Field(
        description="What the network linearised where the descent ended has left below, with a Gauss-Radau bound on "
        "the solver's rest; until 2026-11: what the solver left."
    )
    linearised: Real | Earlier | None = Field(
        default=None, description="The same where the descent began: the excess of the linearised network."
    )
    rounding: Real | Earlier | None = Field(default=None, description="Allowance for floating-point rounding, in nats.")
    standard_error: Real | Earlier | None = Field(
        default=None, description="In earlier certificates only: standard error of the excess from sampling rows."
    )
    softer: Real | Earlier | None = Field(
        default=None, description="In earlier certificates only: how far the curvature falls short of linear, a share."
    )
    deviation: Real | Earlier | None = Field(
        default=None, description="In earlier certificates only: how far the gradient deviates from linear, a share."
    )
    widths: Real | None = Field(description="Excess due to wrong widths, in nats.")
    made: Real | None = Field(description="½ΔᵀAΔ of the step Δ that was made.")
    divergence: Real | None = Field(description="KL(processed ‖ where the descent ended), in nats.")
    divergence_reverse: Real | None = Field(description="KL(where the descent ended ‖ processed), in nats.")
    paper_epsilon: Real | None = Field(description="The paper's bound with that distance; null where it is infinite.")
    gradient: Real | None = Field(description="Norm of the residual gradient, in units of 1/σ.")
    gradient_margin: Real | Earlier | None = Field(
        default=None, description="In earlier certificates only: how far sampling may have moved that norm."
    )
    lambda_min: Real | None = Field(description="Smallest curvature, in units of the widths.")
    lipschitz: Real | None = Field(description="Sampled third derivative, in the same units.")
    kantorovich: Real | None = Field(description="Lη/m from the two; at 1/2 or more the theorem says nothing.")
    pull_norm: Real | None = Field(description="Norm of the gradient of the forgotten rows, in units of 1/σ.")
    rows: Count = Field(description="Rows whose energy was descended: all that are retained; until 2026-11 a sample.")
    reads: Count | Earlier | None = Field(default=None, description="Draws of the frozen noise that read each row.")
    steps: Count | Earlier | None = Field(default=None, description="Steps of the descent.")
    products: Count = Field(description="Products with the curvature matrix.")
    seconds: Real | None = Field(description="Time that the estimate took.")


class RetrainedNetworkConstants(Constants):
    """How a network was retrained, and how near to rest training came."""

    seed: int = Field(strict=True, description="Seed of the training run.")
    iterations: Count = Field(description="Iterations of the training run.")
    residual: Real | None = Field(description="Norm of the gradient that training left.")
    residual_of_a_row: Real | None = Field(description="Typical norm of the gradient of one row.")
    lambda_min: Real | None = Field(description="Smallest curvature found.")


class RetrainedMember(SignedModel):
    """A member of an ensemble that lost rows and was trained again."""

    member: Count = Field(description="Its number before the deletion, from 0.")
    rows_before: Count = Field(description="Rows of its shard before the deletion.")
    rows_after: Count = Field(description="Rows it was trained on; with 0 it was dropped.")
    seed: Count = Field(description="Seed of its training.")
    iterations: Count = Field(description="Minibatches of its training.")


class UnchangedMember(SignedModel):
    """A member of an ensemble that had read none of the forgotten rows."""

    member: Count = Field(description="Its number before the deletion, from 0.")
    sha256: Sha256 = Field(description="SHA-256 of its parameters, float64, in the file before and in the one after.")


class EnsembleConstants(Constants):
    """Which members of an ensemble were trained again, by which recipe, and which are the same bytes as before."""

    members_before: Count = Field(description="Members before the deletion.")
    members_after: Count = Field(description="Members after it: those without rows were dropped.")
    retrained: list[RetrainedMember] = Field(description="Members that lost rows.")
    unchanged: list[UnchangedMember] = Field(description="All other members.")
    epochs: Count = Field(description="Recipe: passes over a member's rows.")
    batch_size: Count = Field(description="Recipe: rows in a minibatch.")
    learning_rate: Real = Field(description="Recipe: first learning rate.")
    prior_share: Real = Field(description="Recipe: power of the prior in a member's posterior.")


class GaussianTheorem(SignedModel):
    """What a shift alone would leave if both posteriors were Gaussian."""

    kl: Real | None = Field(description="KL(moved ‖ retained), in nats.")
    paper_order: Real | None = Field(description="The epsilon that the original paper's theorem states.")


class SampleConstants(Constants):
    """Constants of an estimate for a sample set, from the importance weights of all deletions since it was drawn."""

    may_be_absent = frozenset(
        {
            "reading",
            "chi_square",
            "undetectable",
            "s_r_hat",
            "s_ess",
            "panel_r_hat",
            "panel_ess",
            "independent_draws",
            "effective_parameters",
        }
    )

    n_before: Count = Field(description="Rows before forgetting.")
    draws: Count = Field(description="Samples that were weighed.")
    reading: Reading | Earlier = Field(
        default=None,
        description="How the samples have to be read for the bound to hold: as they are, or picked by their weights.",
    )
    estimate: Real | None = Field(description="Estimate of the divergence, in nats.")
    chi_square: Real | Earlier = Field(
        default=None, description="Estimate of the chi-square divergence of the retained posterior from the samples."
    )
    relative_ess: Real | None = Field(description="Relative effective sample size of the weights.")
    k_hat: Real | None = Field(description="Pareto k-hat of the weights' tail.")
    effective_draws: Real | None = Field(description="Effective number of samples behind the estimate.")
    undetectable: Real | Earlier = Field(
        default=None,
        description="Divergence that the diagnostics of so many draws cannot exclude, in nats; epsilon contains it.",
    )
    unevenness: Real | None = Field(description="How far the samples are from having been moved by one affine map.")
    rounding: Real | None = Field(description="Allowance for floating-point rounding of the weights.")
    chain_r_hat: Real | None = Field(description="R-hat of the chains that drew the samples.")
    chain_ess: Real | None = Field(description="Effective sample size of those chains.")
    chain_width: Real | None = Field(description="Width of those chains relative to the posterior's.")
    gaussian: GaussianTheorem | None = Field(description="A second view; null for models too large for it.")
    s_r_hat: Real | Earlier | None = Field(
        default=None,
        description="R-hat of the log-likelihood of all rows forgotten since the chains drew. This and what follows is "
        "null where the parameters themselves are checked.",
    )
    s_ess: Real | Earlier | None = Field(default=None, description="Effective sample size of that log-likelihood.")
    panel_r_hat: Real | Earlier | None = Field(
        default=None, description="R-hat of the log-likelihood of a row, the worst of a panel of rows."
    )
    panel_ess: Real | Earlier | None = Field(
        default=None, description="Effective sample size of such a log-likelihood, the smallest of the panel."
    )
    independent_draws: Real | Earlier | None = Field(
        default=None, description="Number of independent draws that the weights are worth: N of the bound."
    )
    effective_parameters: Real | Earlier | None = Field(
        default=None,
        description="How much the log-likelihoods vary between draws, as a number of parameters that the rows inform.",
    )


class FunctionMixing(SignedModel):
    """Mixing of a network's chains, judged by the log-likelihoods of a random panel of rows."""

    rows: Count = Field(description="Rows of the panel.")
    chains: Count = Field(description="Chains that were compared.")
    r_hat: Real | None = Field(description="R-hat of the worst row.")
    r_hat_limit: Real | None = Field(description="Limit of `r_hat`.")
    typical_r_hat: Real | None = Field(description="R-hat of the row in the middle.")
    ess: Real | None = Field(description="Effective sample size of the worst row.")
    effective_parameters: Real | None = Field(
        description="How much the log-likelihoods vary between draws, as a number of parameters that the rows inform."
    )
    distinct_draws: Count = Field(description="Draws that differ from each other.")


class TemperedConstants(Constants):
    """Constants of an estimate for a tempered sample set: stages of weights, with chain steps after each."""

    n_before: Count = Field(description="Rows before forgetting.")
    draws: Count = Field(description="Draws, before and after.")
    stages: Count = Field(description="Stages in which the forgotten rows were removed.")
    smallest_ess: Real | None = Field(
        description="Smallest relative effective sample size of a chain's weights, over all stages."
    )
    ancestors: Count = Field(description="Draws before that have a descendant among those after.")
    copies: Count = Field(description="Draws that equal another one.")
    acceptance: Real | None = Field(description="Share of accepted steps in the last stage.")
    row_passes: Count = Field(description="Gradients of a row at a draw that were computed.")
    picked: Real | None = Field(description="Sum over the stages of what resampling may have left, in nats.")
    undetectable: Real | None = Field(
        description="Divergence that the diagnostics of so many draws cannot exclude, in nats; epsilon contains it."
    )
    chain_r_hat: Real | None = Field(description="R-hat of the draws after, over the chains they descend from.")
    chain_ess: Real | None = Field(description="Effective sample size of the draws after.")
    chain_width: Real | None = Field(description="Width of the draws after relative to the posterior's.")


class ChainDiagnostics(Constants):
    """Diagnostics of chains that were run again on the retained rows."""

    may_be_absent = frozenset(
        {
            "mean_gradient",
            "mean_gradient_limit",
            "virial",
            "virial_limit",
            "worst_parameter",
            "undetectable",
            "functions",
        }
    )

    r_hat: Real | None = Field(description="R-hat of the chains.")
    ess: Real | None = Field(description="Effective sample size of the chains.")
    width: Real | None = Field(description="Width of the chains relative to the posterior's.")
    mean_gradient: Real | Earlier | None = Field(
        default=None, description="Mean gradient of the potential: its largest deviation from 0, in standard errors."
    )
    mean_gradient_limit: Real | Earlier | None = Field(default=None, description="Limit of `mean_gradient`.")
    virial: Real | Earlier | None = Field(
        default=None, description="Virial of a parameter: its largest deviation from 1, in standard errors."
    )
    virial_limit: Real | Earlier | None = Field(default=None, description="Limit of `virial`.")
    worst_parameter: Count | Earlier | None = Field(
        default=None, description="Index (from 0) of the parameter that the warning names first; null if there is none."
    )
    undetectable: Real | Earlier | None = Field(
        default=None,
        description="The largest divergence, in nats, that these checks could not exclude (95 %) given the draws.",
    )
    warning: str | None = Field(description="Complaint of the diagnostics; null if they passed.")
    functions: FunctionMixing | Earlier | None = Field(
        default=None,
        description="Of a network: the mixing of its predictions, of which `r_hat` and `ess` are the worst; else null.",
    )


class EarlierConstants(Constants):
    """Constants of an earlier version, under the names of that version."""

    model_config = ConfigDict(extra="allow")


BoundConstants = Annotated[
    KantorovichConstants
    | NetworkConstants
    | RetrainedNetworkConstants
    | EnsembleConstants
    | SampleConstants
    | TemperedConstants
    | ChainDiagnostics
    | SkipJsonSchema[EarlierConstants],
    Field(union_mode="left_to_right"),
]


class FreshStarts(SignedModel):
    """Fresh starts of training on the retained rows, beside the published posterior."""

    tried: Count = Field(description="Fresh starts.")
    lower: Count = Field(description="How many of them ended at a lower energy, on the rows that were compared.")
    lowest: Real = Field(ge=0, description="How far below the lowest ended, on all rows, in nats; 0 if none did.")
    rows: Count = Field(description="Rows on which the starts were compared: all retained rows, or a sample.")


class Bound(SignedModel):
    """How close the published posterior is to one that never saw the forgotten rows."""

    may_be_absent = frozenset({"elbo_distance", "fresh_starts", "reference_kind"})

    epsilon: Real = Field(
        ge=0,
        description="In nats. At level `proved` an upper bound, at level `estimated` the upper end of `interval`, at "
        "level `retrained` 0.",
    )
    epsilon_reverse: Real | None = Field(
        default=None, description="The divergence in the other direction; null where it is not computed."
    )
    level: CertifiedLevel = Field(
        description="`estimated`: estimated with an interval, no proof. `proved`: every condition was checked, "
        "rounding included. `retrained`: trained from scratch without the rows."
    )
    reference: str | Earlier = Field(default=None, description="What the published posterior is compared with.")
    reference_kind: Reference | None = Field(
        default=None,
        description="Of a sample set: `posterior`, or the weaker `stored draws`, where the law of the stored draws is "
        "taken as given. Null for other posteriors, and for a network's draws made anew that are not shown to be "
        "draws of the posterior; absent in earlier certificates.",
    )
    direction: str | Earlier = Field(default=None, description="Which divergence, or excess, epsilon is about.")
    n_retained: Count | Earlier = Field(default=None, description="Rows that were retained.")
    assumptions: list[Assumption] = Field(description="The conditions of the bound, each as checked. At least one.")
    constants: BoundConstants | Earlier = Field(
        default=None, description="The numbers behind the bound; which ones depends on how it was computed."
    )
    not_proved: list[str] = Field(default=[], description="What the bound does not show, in sentences.")
    interval: tuple[Real, Real] | None = Field(
        default=None, description="Lower and upper end of the estimate (95 %); null unless the level is `estimated`."
    )
    elbo_distance: Real | None = Field(
        default=None,
        description="Estimated divergence in nats between the reference and the optimum of the exact evidence lower "
        "bound (ELBO); 0 where the energy is the ELBO itself, null where there is none. It enters no bound.",
    )
    fresh_starts: FreshStarts | None = Field(
        default=None,
        description="Whether fresh starts of training ended lower; null where the reference is the only minimum, or "
        "was trained anew.",
    )
    reasons: list[str] = Field(default=[], description="Conditions that failed. Empty in a certificate.")


class Rung(SignedModel):
    """A way of forgetting that was tried."""

    name: RungName = Field(description="`influence`, `newton`, `reweight`, `temper`, `warm` or `retrain`.")
    steps: Count | Earlier = Field(default=None, description="Steps that were made.")
    epsilon: Real | None = Field(description="The bound that was reached; null where there is none.")
    level: Level = Field(description="The level of that bound; `none` where there is none.")
    seconds: Real = Field(description="Time that the rung took.")
    at_least: Real | None = Field(
        default=None, description="What a bound would have been at least, where none was computed."
    )
    failure: str | None = Field(default=None, description="Why the rung led nowhere; null if it did not fail.")
    solver: str | None = Field(default=None, description="Solver of its linear systems; null if it has none.")
