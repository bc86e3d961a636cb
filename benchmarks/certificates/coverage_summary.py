"""Counts of the intervals that cover the truth, over all trials and by length of the sequence and reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vocabulary.posterior_kinds import Reading

_HEAVY_TAIL = 0.7
"""Pareto k̂ above which every certificate must be refused."""


@dataclass(frozen=True)
class Trial:
    """The last certificate of a sequence of deletions, and the truth; without an interval if it was refused.

    `low` and `high` are the interval that the weights give. Epsilon adds what diagnostics cannot exclude.
    """

    family: str
    method: str
    group: str
    deletions: int
    removed: int
    n: int
    reading: Reading
    truth: float
    low: float | None
    high: float | None
    epsilon: float | None
    k_hat: float
    relative_ess: float
    reasons: tuple[str, ...]

    @property
    def issued(self) -> bool:
        return self.epsilon is not None

    @property
    def below(self) -> bool:
        return self.low is not None and self.truth < self.low

    @property
    def above(self) -> bool:
        return self.high is not None and self.truth > self.high

    @property
    def above_epsilon(self) -> bool:
        return self.epsilon is not None and self.truth > self.epsilon


@dataclass(frozen=True)
class Stratum:
    """Certificates issued after sequences of one length, for one reading; `share` of their intervals cover."""

    deletions: int
    reading: Reading
    issued: int
    covered: int
    above: int
    above_epsilon: int

    @property
    def share(self) -> float:
        return self.covered / self.issued if self.issued else math.nan


@dataclass(frozen=True)
class CoverageReport:
    """Coverage of the issued intervals: `share` cover the truth; for `above` the truth lies above the upper end."""

    trials: int
    issued: int
    covered: int
    above: int
    above_epsilon: int
    refused: int
    heavy_tailed: int
    refused_k_hat: int
    share: float
    strata: tuple[Stratum, ...]
    seed: int
    outcomes: tuple[Trial, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, without the single trials."""
        fields = asdict(self)
        del fields["outcomes"]
        strata = [{**asdict(stratum), "share": stratum.share} for stratum in self.strata]
        return {**fields, "strata": strata, "share": self.share if self.issued else None}


def summarise(trials: int, outcomes: tuple[Trial, ...], seed: int) -> CoverageReport:
    issued = [trial for trial in outcomes if trial.issued]
    heavy = [trial for trial in outcomes if not trial.k_hat <= _HEAVY_TAIL]
    covered = _count_covered(issued)
    return CoverageReport(
        trials=trials,
        issued=len(issued),
        covered=covered,
        above=sum(trial.above for trial in issued),
        above_epsilon=sum(trial.above_epsilon for trial in issued),
        refused=len(outcomes) - len(issued),
        heavy_tailed=len(heavy),
        refused_k_hat=sum(not trial.issued for trial in heavy),
        share=covered / len(issued) if issued else math.nan,
        strata=_stratify(issued),
        seed=seed,
        outcomes=outcomes,
    )


def _stratify(issued: Sequence[Trial]) -> tuple[Stratum, ...]:
    keys = sorted({(trial.deletions, trial.reading) for trial in issued})
    return tuple(
        _describe_stratum(key, [trial for trial in issued if (trial.deletions, trial.reading) == key]) for key in keys
    )


def _describe_stratum(key: tuple[int, Reading], trials: Sequence[Trial]) -> Stratum:
    above, above_epsilon = sum(trial.above for trial in trials), sum(trial.above_epsilon for trial in trials)
    return Stratum(*key, len(trials), _count_covered(trials), above, above_epsilon)


def _count_covered(trials: Sequence[Trial]) -> int:
    return sum(not (trial.below or trial.above) for trial in trials)
