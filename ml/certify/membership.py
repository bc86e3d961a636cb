"""Whether an attacker who holds the model can tell that a row was trained on.

The score of a row z under draws θ_1..θ_M of the posterior is log (1/M) Σ_t p(z | θ_t): models know best what they have
seen. The attack compares scores of one group with those of rows that no model has seen:

    auc          P(score > score of a never-seen row) + ½ P(equal); ½ is blind
    error        its standard error                                   (E. DeLong, D. DeLong, D. Clarke-Pearson, 1988)
    advantage    the largest true less false positive rate over all thresholds, where "trained on" is said of scores
                 above it, and where it is said of scores below it, as too much forgetting would show itself
    chance       what an advantage stays under with probability 0.95 where both groups are alike (N. Smirnov, 1944)

This is one attack. That it fails is evidence, not proof.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import plain
from ml.errors import InvalidInput, NumericalFailure
from ml.models.likelihood import Likelihood

_MOST_ROWS = 4096  # of retained and of never-seen rows: their errors are then below a hundredth
_ROWS_AT_ONCE = 1024
_QUANTILES = 21


@dataclass(frozen=True)
class Attack:
    """How well scores tell one group from never-seen rows. `error` is NaN for a group of one."""

    auc: float
    error: float
    advantage_above: float
    advantage_below: float
    chance: float


@dataclass(frozen=True)
class WorstExample:
    """The forgotten row with the highest score after forgetting, by its place among the forgotten ones.

    `p_value` is the share of never-seen rows that score as high, counting the row itself; `adjusted` is that of the
    highest of so many rows (C. Bonferroni). Its scores themselves are nobody's business.
    """

    position: int
    p_value_before: float
    p_value: float
    adjusted: float


@dataclass(frozen=True)
class Membership:
    """The attacks on one version of the model, and quantiles of each group's scores for a plot of them.

    Without never-seen rows there is no attack. Of few rows quantiles would be the scores themselves: there are none.
    """

    forgotten: Attack | None
    retained: Attack | None
    forgotten_quantiles: tuple[float, ...]
    retained_quantiles: tuple[float, ...]
    never_seen_quantiles: tuple[float, ...]


@dataclass(frozen=True)
class MembershipReport:
    before: Membership
    after: Membership
    worst: WorstExample | None
    n_forgotten: int
    n_retained: int
    n_never_seen: int

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; infinity and NaN, which JSON lacks, become None."""
        return {name: plain(value) for name, value in asdict(self).items()}


def audit_membership(
    likelihood: Likelihood,
    before: Tensor,
    after: Tensor,
    forgotten: Tensor,
    retained: Tensor,
    never_seen: Tensor | None,
    seed: int = 0,
) -> MembershipReport:
    """Attack the draws (M, p) `before` and `after`; the other tensors are rows, of which large groups are sampled."""
    likelihood.check_data(retained)
    generator = torch.Generator().manual_seed(seed)
    unseen = retained[:0] if never_seen is None else _sampled(never_seen, generator)
    groups = (forgotten, _sampled(retained, generator), unseen)
    if len(forgotten) == 0 or any(rows.shape[1:] != retained.shape[1:] for rows in groups):
        raise InvalidInput("the groups do not fit: pass forgotten, retained and never-seen rows of the same columns")
    earlier = [scores(likelihood, before, rows) for rows in groups]
    later = [scores(likelihood, after, rows) for rows in groups]
    return MembershipReport(
        before=_membership(*earlier),
        after=_membership(*later),
        worst=_worst(earlier[0], earlier[2], later[0], later[2]) if len(unseen) > 0 else None,
        n_forgotten=len(forgotten),
        n_retained=len(groups[1]),
        n_never_seen=len(unseen),
    )


def scores(likelihood: Likelihood, draws: Tensor, rows: Tensor) -> Tensor:
    """log mean_t p(z | θ_t) of each row, in float64: (n,)."""
    if draws.ndim != 2 or draws.shape[1] != likelihood.parameter_count or len(draws) == 0:
        raise InvalidInput(
            f"draws have shape {tuple(draws.shape)}: pass at least one row of {likelihood.parameter_count} parameters"
        )
    total = torch.full((len(rows),), -math.inf, dtype=torch.float64, device=rows.device)
    with torch.no_grad():
        for draw in draws:
            theta = draw.to(rows.dtype)
            for chunk, part in zip(torch.split(rows, _ROWS_AT_ONCE), torch.split(total, _ROWS_AT_ONCE), strict=True):
                torch.logaddexp(part, likelihood.log_likelihood(theta, chunk).double(), out=part)
    if bool(total.isnan().any()):
        raise NumericalFailure("a score is NaN: pass finite draws and rows")
    return total - math.log(len(draws))


def attack(members: Tensor, others: Tensor) -> Attack:
    """By their scores. Each AUC component is the share of the other group that a score beats, ties counting half."""
    members, others = members.sort().values, others.sort().values
    beaten, unbeaten = _share_below(members, others), 1 - _share_below(others, members)
    pairs = 1 / len(members) + 1 / len(others)
    everywhere = torch.cat([members, others])
    gaps = _distribution(others, everywhere) - _distribution(members, everywhere)
    return Attack(
        auc=float(beaten.mean()),
        error=math.sqrt(_variance_of_mean(beaten) + _variance_of_mean(unbeaten)),
        advantage_above=max(0.0, float(gaps.max())),
        advantage_below=max(0.0, -float(gaps.min())),
        chance=min(1.0, math.sqrt(pairs * math.log(20) / 2)),
    )


def _membership(forgotten: Tensor, retained: Tensor, never_seen: Tensor) -> Membership:
    compared = len(never_seen) > 0
    return Membership(
        attack(forgotten, never_seen) if compared else None,
        attack(retained, never_seen) if compared else None,
        *(_quantiles(group) for group in (forgotten, retained, never_seen)),
    )


def _worst(before: Tensor, unseen_before: Tensor, after: Tensor, unseen_after: Tensor) -> WorstExample:
    position = int(after.argmax())
    p_value = _p_value(after[position], unseen_after)
    return WorstExample(
        position, _p_value(before[position], unseen_before), p_value, adjusted=min(1.0, len(after) * p_value)
    )


def _p_value(score: Tensor, never_seen: Tensor) -> float:
    return (1 + int((never_seen >= score).sum())) / (1 + len(never_seen))


def _share_below(values: Tensor, of: Tensor) -> Tensor:
    """The share of `of`, sorted, below each value, and half of the share that equals it."""
    return (torch.searchsorted(of, values) + torch.searchsorted(of, values, right=True)).double() / (2 * len(of))


def _distribution(of: Tensor, at: Tensor) -> Tensor:
    return torch.searchsorted(of, at, right=True).double() / len(of)


def _variance_of_mean(values: Tensor) -> float:
    return float(values.var()) / len(values) if len(values) > 1 else math.nan


def _sampled(rows: Tensor, generator: torch.Generator) -> Tensor:
    if len(rows) <= _MOST_ROWS:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:_MOST_ROWS].to(rows.device)]


def _quantiles(of: Tensor) -> tuple[float, ...]:
    if len(of) < _QUANTILES:
        return ()
    return tuple(of.quantile(torch.linspace(0, 1, _QUANTILES, dtype=of.dtype, device=of.device)).tolist())
