"""Certificate of a moved sample set: its estimated divergence from the posterior of the retained rows R.

Samples of p(θ | S) were moved by one affine map to represent p(θ | R). Their importance weights
(`ml.certify.importance`) give the divergence without retraining and without assuming Gaussian posteriors. Everything
that could make the weights misleading is checked; if a check fails, nothing is certified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.gaussian_theorem import GaussianTheorem, gaussian_theorem
from ml.certify.importance import estimate_divergence, log_importance_weights, pareto_k, relative_ess, unevenness
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows_of_samples
from ml.forgetting.samples import MovedSamples
from ml.inference.chains import Sampled
from ml.inference.diagnostics import Diagnostics
from ml.models.likelihood import Likelihood
from ml.posteriors.sample_set import SampleSet

REFERENCE = "the posterior given the retained rows"
DIRECTION = "epsilon is the upper end of an interval for KL(moved ‖ reference); the other direction is not estimated"
NOT_PROVED = (
    "The stored samples are taken to be draws from the posterior given all rows; their diagnostics can refute that, "
    "not show it. After earlier deletions they are such draws as far as those certificates say.",
    "The divergence is estimated, not bounded: what the retained posterior holds where no moved sample lies is unseen.",
    "The model family, its prior and the retained rows are taken as given; that they describe the world is not shown.",
    "Copies of the forgotten rows, and of models trained on them, that are kept outside Lethe are not covered.",
    "The divergence speaks of draws from the posterior; releasing all samples, or the map, is another matter.",
)
RESAMPLED_FROM = (
    "The chains set out from the mode that is nearest to the samples before: which of several modes that is may still "
    "depend on the forgotten rows. That they have converged is what diagnostics can refute, not show."
)
NOT_CHECKED_AS_ONE_MAP = (
    "That one affine map moved every sample is taken as given: with so few samples, or so many parameters, "
    "it was not checked."
)

_MAX_K_HAT = 0.7  # Vehtari et al., Pareto smoothed importance sampling
_MIN_RELATIVE_ESS = 0.1
# An estimate from N draws never exceeds log N. Half of that leaves e^(2ε) draws to estimate ε.
_LOG_DRAWS_SHARE = 0.5
# In posterior standard deviations: above the error of the solvers, below what would change the divergence.
_MAX_UNEVENNESS = 1e-2
_MAX_PARAMETERS = 2000  # for dense Hessians


@dataclass(frozen=True)
class SampleConstants:
    """Numbers behind the estimate; NaN if they were not given or could not be computed."""

    n_before: int
    draws: int
    estimate: float
    relative_ess: float
    k_hat: float
    effective_draws: float
    unevenness: float
    rounding: float
    chain_r_hat: float
    chain_ess: float
    chain_width: float
    gaussian: GaussianTheorem | None


def certify_samples(
    likelihood: Likelihood,
    before: SampleSet,
    moved: MovedSamples,
    data: Tensor,
    forgotten: Tensor,
    diagnostics: Diagnostics | None,
    seed: int = 0,
) -> Certificate:
    """Estimate the divergence of the `moved` samples from the posterior of the rows that are not `forgotten`.

    `diagnostics` belong to the chains that drew `before`; without them nothing is certified. `seed` is the bootstrap's.
    """
    retained = retained_rows_of_samples(likelihood, before.samples, data, forgotten)
    if moved.samples.shape != before.samples.shape:
        raise InvalidInput(
            f"moved samples have shape {tuple(moved.samples.shape)}, stored samples {tuple(before.samples.shape)}: "
            "pass the whole sample set that was moved"
        )
    log_weights, rounding = log_importance_weights(likelihood, before.samples, moved, data, retained)
    divergence = estimate_divergence(log_weights, before.chain, rounding, seed)
    ess = relative_ess(log_weights)
    constants = SampleConstants(
        n_before=len(data),
        draws=len(log_weights),
        estimate=divergence.value,
        relative_ess=ess,
        k_hat=pareto_k(log_weights, rounding),
        effective_draws=ess * (diagnostics.ess if diagnostics else math.nan),
        unevenness=unevenness(before.samples, moved.samples),
        rounding=rounding,
        chain_r_hat=diagnostics.r_hat if diagnostics else math.nan,
        chain_ess=diagnostics.ess if diagnostics else math.nan,
        chain_width=diagnostics.width if diagnostics else math.nan,
        gaussian=_theorem(likelihood, moved, data, retained),
    )
    assumptions = _assumptions(constants, int((~torch.isfinite(log_weights)).sum()), divergence.high, diagnostics)
    estimated = all(assumption.holds for assumption in assumptions)
    return Certificate(
        epsilon=divergence.high if estimated else math.inf,
        epsilon_reverse=math.nan,
        level="estimated" if estimated else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(retained),
        assumptions=assumptions,
        constants=constants,
        not_proved=NOT_PROVED + ((NOT_CHECKED_AS_ONE_MAP,) if math.isnan(constants.unevenness) else ()),
        interval=(divergence.low, divergence.high) if estimated else None,
    )


def certify_resampled(sampled: Sampled, n_retained: int) -> Certificate:
    """Certify chains that have read the retained rows only: ε is 0 if they pass their diagnostics."""
    diagnostics = sampled.diagnostics
    return Certificate(
        epsilon=0.0 if diagnostics.ok else math.inf,
        epsilon_reverse=0.0 if diagnostics.ok else math.inf,
        level="retrained" if diagnostics.ok else "none",
        reference="these samples themselves, drawn anew on the retained rows",
        direction=DIRECTION,
        n_retained=n_retained,
        assumptions=(_chains(diagnostics),),
        constants=diagnostics,
        not_proved=(RESAMPLED_FROM, *NOT_PROVED[2:]),
    )


def _theorem(likelihood: Likelihood, moved: MovedSamples, data: Tensor, retained: Tensor) -> GaussianTheorem | None:
    """Apply the theorem if a dense Hessian is affordable."""
    affordable = likelihood.parameter_count <= _MAX_PARAMETERS
    return gaussian_theorem(likelihood, moved, data, retained) if affordable else None


def _assumptions(
    constants: SampleConstants, not_finite: int, high: float, diagnostics: Diagnostics | None
) -> tuple[Assumption, ...]:
    range_limit = _LOG_DRAWS_SHARE * math.log(max(constants.effective_draws, 1.0))
    assumptions = [
        Assumption("finite", not_finite == 0, not_finite, 0.0, "every sample has a finite weight"),
        Assumption(
            "tail",
            constants.k_hat <= _MAX_K_HAT,
            constants.k_hat,
            _MAX_K_HAT,
            "the tail of the weights is light enough (Pareto k-hat) for their mean to be estimated",
        ),
        Assumption(
            "overlap",
            constants.relative_ess >= _MIN_RELATIVE_ESS,
            constants.relative_ess,
            _MIN_RELATIVE_ESS,
            "the weights leave enough of the samples (relative effective sample size)",
        ),
        Assumption(
            "range",
            high <= range_limit,
            high,
            range_limit,
            "the divergence is well below the logarithm of the number of effective samples, beyond which none is seen",
        ),
        _chains(diagnostics),
    ]
    if not math.isnan(constants.unevenness):
        holds = constants.unevenness <= _MAX_UNEVENNESS
        meaning = "one affine map moved every sample"
        assumptions.append(Assumption("one map", holds, constants.unevenness, _MAX_UNEVENNESS, meaning))
    return tuple(assumptions)


def _chains(diagnostics: Diagnostics | None) -> Assumption:
    passed = diagnostics is not None and diagnostics.ok
    complaint = "they were not given" if diagnostics is None else diagnostics.warning
    meaning = "the chains that drew the samples passed their diagnostics" + ("" if passed else f": {complaint}")
    return Assumption("chains", passed, float(passed), 1.0, meaning)
