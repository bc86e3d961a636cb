"""Membership inference attack: can somebody who holds the model tell that a row was trained on?

The score of a row z under draws θ_1..θ_M of the posterior is log (1/M) Σ_t p(z | θ_t): models give a higher likelihood
to rows they were trained on. The attack compares the scores of one group with those of never-seen rows:

    auc          P(score > score of a never-seen row) + ½ P(equal); ½ is no better than guessing
    error        its standard error                                   (E. DeLong, D. DeLong, D. Clarke-Pearson, 1988)
    advantage    the largest true minus false positive rate over all thresholds. "above": scores above the threshold
                 count as trained on; "below": scores below it, which would reveal excessive forgetting
    chance       the limit an advantage stays under with probability 0.95 if both groups are alike (N. Smirnov, 1944)

This is a single attack. Its failure is evidence, not proof.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import plain
from ml.certify.predictive import WeightedDraws, log_predictive
from ml.errors import InvalidInput
from ml.models.likelihood import Likelihood

MAX_ROWS = 4096  # retained and never-seen rows each: the standard errors are then below 0.01
_QUANTILES = 21


@dataclass(frozen=True)
class Attack:
    """How well scores separate one group from never-seen rows. `error` is NaN for a group of one row."""

    auc: float
    error: float
    advantage_above: float
    advantage_below: float
    chance: float


@dataclass(frozen=True)
class WorstExample:
    """The forgotten row with the highest score after forgetting, by its position among the forgotten rows.

    `p_value` is the share of never-seen rows with at least its score, counting the row itself. `adjusted` is corrected
    for the number of forgotten rows (C. Bonferroni). The score itself stays private.
    """

    position: int
    p_value_before: float
    p_value: float
    adjusted: float


@dataclass(frozen=True)
class Membership:
    """Attacks on one version of the model, and quantiles of each group's scores for plots.

    There is no attack without never-seen rows. Small groups have no quantiles, which would reveal single scores.
    """

    forgotten: Attack | None
    retained: Attack | None
    forgotten_quantiles: tuple[float, ...]
    retained_quantiles: tuple[float, ...]
    never_seen_quantiles: tuple[float, ...]


@dataclass(frozen=True)
class MembershipReport:
    """Attacks before and after forgetting."""

    before: Membership
    after: Membership
    worst: WorstExample | None
    n_forgotten: int
    n_retained: int
    n_never_seen: int

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {name: plain(value) for name, value in asdict(self).items()}


def audit_membership(
    likelihood: Likelihood,
    before: Tensor,
    after: Tensor,
    forgotten: Tensor,
    retained: Tensor,
    never_seen: Tensor | None,
    seed: int = 0,
    max_rows: int = MAX_ROWS,
) -> MembershipReport:
    """Attack the draws (M, p) `before` and `after` forgetting.

    The other tensors are rows. Of retained and never-seen rows at most `max_rows` each are read, a random selection.
    """
    likelihood.check_data(retained)
    generator = torch.Generator().manual_seed(seed)
    unseen = retained[:0] if never_seen is None else _subsample(never_seen, max_rows, generator)
    groups = (forgotten, _subsample(retained, max_rows, generator), unseen)
    if len(forgotten) == 0 or any(rows.shape[1:] != retained.shape[1:] for rows in groups):
        raise InvalidInput(
            "the groups do not match: pass forgotten, retained and never-seen rows with the same columns"
        )
    scores_before = [membership_scores(likelihood, before, rows) for rows in groups]
    scores_after = [membership_scores(likelihood, after, rows) for rows in groups]
    return MembershipReport(
        before=_membership(*scores_before),
        after=_membership(*scores_after),
        worst=_worst_example(scores_before, scores_after) if len(unseen) > 0 else None,
        n_forgotten=len(forgotten),
        n_retained=len(groups[1]),
        n_never_seen=len(unseen),
    )


def membership_scores(likelihood: Likelihood, draws: Tensor, rows: Tensor) -> Tensor:
    """Return log mean_t p(z | θ_t) of each row in float64: (n,)."""
    if draws.ndim != 2 or draws.shape[1] != likelihood.parameter_count or len(draws) == 0:
        raise InvalidInput(
            f"draws have shape {tuple(draws.shape)}: pass at least one row of {likelihood.parameter_count} parameters"
        )
    return log_predictive(likelihood.log_likelihood, WeightedDraws.even(draws), rows)


def attack(members: Tensor, others: Tensor) -> Attack:
    """Compare the scores of two groups.

    Each component of the AUC is the share of the other group with a lower score. Ties count half.
    """
    members, others = members.sort().values, others.sort().values
    member_wins, other_losses = _share_below(members, others), 1 - _share_below(others, members)
    thresholds = torch.cat([members, others])
    gaps = _empirical_cdf(others, thresholds) - _empirical_cdf(members, thresholds)
    return Attack(
        auc=float(member_wins.mean()),
        error=math.sqrt(_variance_of_mean(member_wins) + _variance_of_mean(other_losses)),
        advantage_above=max(0.0, float(gaps.max())),
        advantage_below=max(0.0, -float(gaps.min())),
        chance=min(1.0, math.sqrt((1 / len(members) + 1 / len(others)) * math.log(20) / 2)),
    )


def _membership(forgotten: Tensor, retained: Tensor, never_seen: Tensor) -> Membership:
    comparable = len(never_seen) > 0
    return Membership(
        attack(forgotten, never_seen) if comparable else None,
        attack(retained, never_seen) if comparable else None,
        *(_quantiles(group) for group in (forgotten, retained, never_seen)),
    )


def _worst_example(scores_before: list[Tensor], scores_after: list[Tensor]) -> WorstExample:
    """Find it from the scores of forgotten, retained and never-seen rows."""
    (before, _, unseen_before), (after, _, unseen_after) = scores_before, scores_after
    position = int(after.argmax())
    p_value_before, p_value = _p_value(before[position], unseen_before), _p_value(after[position], unseen_after)
    return WorstExample(position, p_value_before, p_value, adjusted=min(1.0, len(after) * p_value))


def _p_value(score: Tensor, never_seen: Tensor) -> float:
    return (1 + int((never_seen >= score).sum())) / (1 + len(never_seen))


def _share_below(values: Tensor, ordered: Tensor) -> Tensor:
    """Return the share of the sorted scores `ordered` below each value, plus half of the share equal to it."""
    below, not_above = torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)
    return (below + not_above).double() / (2 * len(ordered))


def _empirical_cdf(ordered: Tensor, thresholds: Tensor) -> Tensor:
    return torch.searchsorted(ordered, thresholds, right=True).double() / len(ordered)


def _variance_of_mean(values: Tensor) -> float:
    return float(values.var()) / len(values) if len(values) > 1 else math.nan


def _subsample(rows: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    if len(rows) <= limit:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:limit].to(rows.device)]


def _quantiles(scores: Tensor) -> tuple[float, ...]:
    if len(scores) < _QUANTILES:
        return ()
    return tuple(scores.quantile(torch.linspace(0, 1, _QUANTILES, dtype=scores.dtype, device=scores.device)).tolist())
