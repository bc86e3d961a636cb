"""Limits on importance weights: how even they have to be for a certificate, in either reading."""

from __future__ import annotations

from ml.certify.certificate import Assumption
from ml.certify.sample_constants import SampleConstants
from vocabulary.posterior_kinds import Reading

MAX_K_HAT: dict[Reading, float] = {"draws": 0.7, "weighted draws": 0.5}
"""0.7 is the limit of Pareto smoothed importance sampling (Vehtari et al.)."""
MIN_RELATIVE_ESS: dict[Reading, float] = {"draws": 0.1, "weighted draws": 0.6}


def weight_assumptions(constants: SampleConstants) -> tuple[Assumption, Assumption]:
    """Return the conditions that the weights' tail is light and that they leave enough of the draws."""
    max_k_hat, min_ess = MAX_K_HAT[constants.reading], MIN_RELATIVE_ESS[constants.reading]
    light, left = constants.k_hat <= max_k_hat, constants.relative_ess >= min_ess
    tail = "the tail of the weights is light enough (Pareto k-hat) for their mean to be estimated"
    overlap = "the weights leave enough of the samples (relative effective sample size)"
    if not left:
        overlap = f"{overlap}: {describe_worn(constants.relative_ess)}"
    return (
        Assumption("tail", light, constants.k_hat, max_k_hat, tail),
        Assumption("overlap", left, constants.relative_ess, min_ess, overlap),
    )


def describe_worn(ess: float) -> str:
    return f"the weights are worn out: {100 * ess:.2g} % of the draws are left; new chains restore them (rung retrain)"
