"""Effects of forgetting, stated beside the bound: releases, membership inference, risk bounds and predictions."""

from __future__ import annotations

from pydantic import Field

from vocabulary.signed_model import Count, Earlier, Flag, Real, Sha256, SignedModel


class Release(SignedModel):
    """What releasing independent draws of the published posterior gives away."""

    draws: Count = Field(description="Number of released draws.")
    nats: Real = Field(
        description="Their divergence from draws of the reference: `draws` times epsilon; `draws`² times epsilon where "
        "the bound is of weighted draws."
    )
    advantage: Real = Field(
        description="Upper bound of an attacker's advantage (true minus false positive rate) in telling them apart."
    )


class Attack(SignedModel):
    """How well scores separate a group of rows from rows that no model has seen."""

    auc: Real = Field(description="Area under the ROC curve; 0.5 is blind guessing.")
    error: Real | None = Field(description="Its standard error; null for a group of one row.")
    advantage_above: Real = Field(description="Largest true minus false positive rate, flagging scores above a limit.")
    advantage_below: Real = Field(description="The same, flagging scores below a limit.")
    chance: Real = Field(description="What an advantage stays below with probability 0.95 where both groups are alike.")


class MembershipSide(SignedModel):
    """The attack on one version of the model. Quantiles are 21 values, evenly spaced from 0 to 1."""

    forgotten: Attack | None = Field(default=None, description="The forgotten rows; null without never-seen rows.")
    retained: Attack | None = Field(default=None, description="The retained rows; null without never-seen rows.")
    forgotten_quantiles: list[Real | None] = Field(
        default=[], description="Of the forgotten rows' scores; empty for fewer than 21 rows."
    )
    retained_quantiles: list[Real | None] = Field(
        default=[], description="Of the retained rows' scores; empty for fewer than 21 rows."
    )
    never_seen_quantiles: list[Real | None] = Field(
        default=[], description="Of the never-seen rows' scores; empty for fewer than 21 rows."
    )


class WorstExample(SignedModel):
    """The forgotten row with the highest score after forgetting."""

    p_value_before: Real = Field(description="Share of never-seen rows that score as high, under the model before.")
    p_value: Real = Field(description="The same under the model after.")
    adjusted: Real = Field(description="`p_value` corrected for having picked the worst of all forgotten rows.")
    commitment: Sha256 | None = Field(
        default=None, description="Commitment to the person; null where the row itself was named."
    )


class Membership(SignedModel):
    """A membership-inference attack on the model before and after. Evidence, not proof."""

    before: MembershipSide = Field(description="The version before forgetting.")
    after: MembershipSide = Field(description="The version after forgetting.")
    worst: WorstExample | None = Field(
        default=None,
        description="Null without never-seen rows, and where it is a record of another request in the same batch.",
    )
    n_forgotten: Count | Earlier = Field(default=None, description="Forgotten rows that were scored.")
    n_retained: Count | Earlier = Field(default=None, description="Retained rows that were scored, a sample of many.")
    n_never_seen: Count | Earlier = Field(default=None, description="Never-seen rows that were scored.")


class RiskBound(SignedModel):
    """PAC-Bayes bound of the error rate on new rows."""

    risk: Real = Field(description="Error rate on the rows, averaged over draws.")
    risk_limit: Real = Field(description="Upper bound of the expectation of `risk`.")
    kl: Real = Field(description="KL(posterior ‖ prior), in nats.")
    rows: Count = Field(description="Rows that the posterior was trained on.")
    draws: Count = Field(description="Draws that `risk` is averaged over.")
    delta: Real = Field(description="Probability with which the bound may fail.")
    bound: Real = Field(description="Upper bound of the error rate on new rows.")
    vacuous: Flag | Earlier = Field(default=None, description="Whether the bound is 1 and says nothing.")


class PacBayes(SignedModel):
    """Risk bounds of the model before and after."""

    before: RiskBound = Field(description="The version before forgetting.")
    after: RiskBound = Field(description="The version after forgetting.")
    not_proved: list[str] = Field(default=[], description="What these bounds do not show, in sentences.")


class PredictionShift(SignedModel):
    """Predictions of a group of rows before and after, rounded to two digits. KL in nats, between class probabilities.

    The probability of the label and the error are null for fewer than 21 rows, as they would reveal single scores.
    """

    rows: Count = Field(description="Rows of the group that were predicted, a sample of many.")
    kl: Real = Field(description="Mean over the rows of KL(prediction after ‖ prediction before).")
    kl_error: Real | None = Field(
        description="Standard error of `kl` from the choice of draws (of an ensemble, of its members); null for one."
    )
    kl_max: Real = Field(description="The largest divergence of a row.")
    kl_reverse: Real = Field(description="Mean over the rows of KL(prediction before ‖ prediction after).")
    noise: Real | None = Field(
        description="Mean KL between the predictions of two halves of the draws after (of an ensemble, of its "
        "members): what chains that are run again show of the same posterior. Null for a single draw."
    )
    label_before: Real | None = Field(description="Mean probability of the row's own label before.")
    label_after: Real | None = Field(description="The same after.")
    error_before: Real | None = Field(description="Share of rows with another label as the most probable one, before.")
    error_after: Real | None = Field(description="The same after.")


class FunctionSpace(SignedModel):
    """How far predictions moved. Evidence, not proof; after retraining, against a model that never saw the rows."""

    forgotten: PredictionShift = Field(description="The forgotten rows of the whole batch.")
    retained: PredictionShift = Field(description="A random panel of retained rows.")
    never_seen: PredictionShift | None = Field(description="A random panel of never-seen rows; null if there are none.")
    draws_before: Count = Field(description="Draws over which predictions before were averaged.")
    draws_after: Count = Field(description="Draws over which predictions after were averaged.")


class Effects(SignedModel):
    """What forgetting did to the model. Evidence beside the bound."""

    may_be_absent = frozenset({"function_space"})
    release: list[Release] = Field(
        default=[], description="One entry for each number of draws; empty where no divergence is known."
    )
    membership: Membership | Earlier = Field(default=None, description="Membership inference before and after.")
    pac_bayes: PacBayes | None = Field(
        default=None, description="Null for families that do not classify, or if it cannot be computed."
    )
    function_space: FunctionSpace | None = Field(
        default=None, description="Null for families that do not classify, or if it cannot be computed."
    )
