"""Limits on importance weights: how even they have to be for a certificate, and how far a bound from few is widened.

For draws that are read as they are, k̂ ≤ 0.7, the limit of Pareto smoothed importance sampling (Vehtari et al.), and a
relative effective sample size of 0.1. For draws that are picked by their weights, with N independent draws,

    k̂ ≤ 0.7        ESS/N ≥ max(0.2, 50/N)        epsilon = 2 (1 + 150/N) log(1 + χ²/N), χ² the end of its interval

The interval on χ² already grows where ESS/N is low (`ml.certify.importance`). Bounds fail for another reason: few draws
miss the tail of w, and look evener than they are. So it is N that decides, not ESS/N, and the last factor grows as N
falls. Measured by E_R log(1 + (w-1)/N) on weights of known law: log w normal, quadratic in a normal, exponential with
tail indices up to 0.6, and -log of a logistic function, so that χ² is infinite for some; four chains of 100 to 4,000
draws in all, independent or with an autocorrelation of ½. Covered of issued by ESS/N, beside what ESS/N ≥ 0.6,
k̂ ≤ 0.5 and a factor of 2 give on the same sets:

    N independent draws     0.2 to 0.5   0.5 to 0.7   0.7 to 0.9   0.9 to 1    all                  0.6, 0.5 and 2
    100 to 250              194 of 195   333 of 339   407 of 432   525 of 532  97.4 % of 1,498      91.7 % of 986
    250 to 1,000            486 of 494   458 of 474   387 of 401   616 of 619  97.9 % of 1,988      97.4 % of 1,148
    1,000 to 4,000          315 of 325   237 of 245   234 of 236   367 of 367  98.3 % of 1,173      99.4 % of 699

The factor was chosen on these sets. On fresh ones, of another seed and of 150, 400, 1,500 and 3,000 draws, it covered
494 of 513, 473 of 483 and 403 of 409.
"""

from __future__ import annotations

import math

from ml.certify.certificate import Assumption
from ml.certify.sample_constants import SampleConstants
from vocabulary.posterior_kinds import Reading

MAX_K_HAT = 0.7
_MIN_RELATIVE_ESS: dict[Reading, float] = {"draws": 0.1, "weighted draws": 0.2}
_MIN_WEIGHTED_DRAWS = 50.0
_DOUBLED, _FEW = 2.0, 150.0


def min_relative_ess(reading: Reading, independent_draws: float = math.inf) -> float:
    """Return the share of the draws that the weights have to leave."""
    least = _MIN_RELATIVE_ESS[reading]
    return least if reading == "draws" else max(least, _MIN_WEIGHTED_DRAWS / independent_draws)


def widening(independent_draws: float) -> float:
    """Return the factor by which a bound for weighted draws is widened."""
    return _DOUBLED * (1 + _FEW / independent_draws)


def weight_assumptions(constants: SampleConstants, independent_draws: float) -> tuple[Assumption, Assumption]:
    """Return the conditions that the weights' tail is light and that they leave enough of the draws."""
    min_ess = min_relative_ess(constants.reading, independent_draws)
    light, left = constants.k_hat <= MAX_K_HAT, constants.relative_ess >= min_ess
    tail = "the tail of the weights is light enough (Pareto k-hat) for their mean to be estimated"
    overlap = "the weights leave enough of the samples (relative effective sample size)"
    if not left:
        overlap = f"{overlap}: {describe_worn(constants.relative_ess)}"
    return (
        Assumption("tail", light, constants.k_hat, MAX_K_HAT, tail),
        Assumption("overlap", left, constants.relative_ess, min_ess, overlap),
    )


def describe_worn(ess: float) -> str:
    return f"the weights are worn out: {100 * ess:.2g} % of the draws are left; new chains restore them (rung retrain)"
