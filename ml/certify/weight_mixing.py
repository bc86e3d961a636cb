"""Mixing of the weights of a sample set: of s = log p(S' | θ), which is all that enters a certificate by weights.

The weights w = e^(-s) decide how many independent draws N a set is worth. Its chains count as the smallest of

    the bulk effective sample size of s       which is that of w: ranks do not see the exponential
    T/τ                                       τ the autocorrelation time of w itself, which its largest values rule
    the number of distinct draws              a chain that stays repeats itself
"""

from __future__ import annotations

from dataclasses import dataclass

from ml.certify.certificate import Assumption
from ml.inference.autocorrelation import autocorrelation_times
from ml.inference.function_mixing import MAX_R_HAT, MIN_ESS, FunctionMixing
from ml.inference.mixing import by_chain, measure_mixing
from ml.posteriors.sample_set import SampleSet


@dataclass(frozen=True)
class WeightMixing:
    """R̂ and effective sample size of s, and the number of independent draws that the weights are worth."""

    r_hat: float
    r_hat_limit: float
    ess: float
    independent_draws: float

    def assumptions(self) -> tuple[Assumption, Assumption]:
        """Return the conditions that the chains agree about the forgotten rows, and are long enough to tell."""
        agree = "the chains agree about the forgotten rows (R-hat of their log-likelihood)"
        enough = "enough independent draws of the forgotten rows' log-likelihood"
        more = ": run the chains longer, run more of them, or refresh them on the retained rows"
        agreed, long = self.r_hat <= self.r_hat_limit, self.independent_draws >= MIN_ESS
        return (
            Assumption("mixing", agreed, self.r_hat, self.r_hat_limit, agree + ("" if agreed else more)),
            Assumption("draws", long, self.independent_draws, MIN_ESS, enough + ("" if long else more)),
        )


def measure_weights(sample_set: SampleSet, functions: FunctionMixing) -> WeightMixing:
    """Measure the mixing of accumulated weights. Weights that are even up to rounding mix as their panel does."""
    s = by_chain(sample_set.log_weights, sample_set.chain).unsqueeze(2)
    most = float(min(len(sample_set.samples), functions.distinct_draws))
    if float(s.max() - s.min()) <= 2 * sample_set.log_weights_error:
        ess = min(functions.ess, most)
        return WeightMixing(functions.r_hat, functions.r_hat_limit, ess, ess)
    mixing, weights = measure_mixing(s), (s - s.max()).exp()
    times = autocorrelation_times(weights - weights.mean())
    independent = min(mixing.ess, weights.numel() / float(times), most)
    return WeightMixing(mixing.r_hat, mixing.r_hat_limit(MAX_R_HAT), mixing.ess, independent)
