"""Certificates of tempered sample sets (`ml.forgetting.tempering`): the moved draws are judged as new draws are.

Their weights are even, so nothing is left to weigh. What is known of their law:

    picked      resampling N draws by weights of divergence χ² leaves KL(π_τ ‖ law of a draw) ≤ log(1 + χ²/N)
    moved       a step that leaves π_τ invariant lowers that divergence or leaves it (data processing)
    diagnosed   against the retained rows: what the draws cannot exclude is added, as for every sample set

Epsilon adds up the first over the stages, doubled since χ² is estimated from the same draws, without what the moves
take away again, and adds the last. The first bound is for independent draws: N is the effective number in a chain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.certify.certificate import Assumption, Certificate
from ml.certify.samples import GIVEN, REFERENCE, UNSEEN
from ml.forgetting.tempering import Tempered
from ml.inference.diagnostics import Diagnostics

DIRECTION = (
    "epsilon is the upper end of an interval for KL(reference ‖ a stored draw), what the diagnostics of the draws "
    "cannot exclude included; the other direction is not estimated"
)
TEMPERED_FROM = (
    "The draws descend from draws of the posterior before by weights and chain steps. Which modes they are in, and how "
    "many in each, is as it was: no step carries a draw from one mode to another."
)
FEW_ANCESTORS = (
    "Draws with a common ancestor are independent only as far as the steps separated them; diagnostics can refute "
    "that, not show it."
)
_DOUBLED = 2.0
_MIN_RELATIVE_ESS = 0.1
_MIN_ACCEPTANCE = 0.4


@dataclass(frozen=True)
class TemperedConstants:
    """Numbers behind the estimate. `picked` is the sum of log(1 + χ²/N) over the stages."""

    n_before: int
    draws: int
    stages: int
    smallest_ess: float
    ancestors: int
    copies: int
    acceptance: float
    row_passes: int
    picked: float
    undetectable: float
    chain_r_hat: float
    chain_ess: float
    chain_width: float


def certify_tempered(tempered: Tempered, diagnostics: Diagnostics, n_before: int, n_retained: int) -> Certificate:
    """Certify tempered draws. `diagnostics` are those of the moved draws against the retained rows."""
    constants = _constants(tempered, diagnostics, n_before)
    assumptions = _assumptions(tempered, diagnostics, constants)
    estimated = all(assumption.holds for assumption in assumptions)
    epsilon = _DOUBLED * constants.picked + constants.undetectable if estimated else math.inf
    return Certificate(
        epsilon=epsilon,
        epsilon_reverse=math.nan,
        level="estimated" if estimated else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=n_retained,
        assumptions=assumptions,
        constants=constants,
        not_proved=(TEMPERED_FROM, FEW_ANCESTORS, UNSEEN, *GIVEN),
        interval=(0.0, epsilon) if estimated else None,
        reference_kind="posterior",
    )


def _constants(tempered: Tempered, diagnostics: Diagnostics, n_before: int) -> TemperedConstants:
    sample_set = tempered.sample_set
    chains, draws = len(set(sample_set.chain.tolist())), len(sample_set.samples)
    independent = min(diagnostics.ess, draws) / chains
    return TemperedConstants(
        n_before=n_before,
        draws=draws,
        stages=tempered.stages,
        smallest_ess=min(tempered.ess_path),
        ancestors=tempered.ancestors,
        copies=tempered.copies,
        acceptance=tempered.acceptance,
        row_passes=tempered.row_passes,
        picked=sum(math.log1p((1 / ess - 1) / independent) for ess in tempered.ess_path),
        undetectable=diagnostics.undetectable,
        chain_r_hat=diagnostics.r_hat,
        chain_ess=diagnostics.ess,
        chain_width=diagnostics.width,
    )


def _assumptions(tempered: Tempered, diagnostics: Diagnostics, constants: TemperedConstants) -> tuple[Assumption, ...]:
    passed, ess, acceptance = diagnostics.ok, constants.smallest_ess, constants.acceptance
    complaint = "" if passed else f": {diagnostics.warning}"
    return (
        Assumption("chains", passed, float(passed), 1.0, f"the moved draws passed their diagnostics{complaint}"),
        Assumption(
            "exact moves",
            tempered.exact,
            float(tempered.exact),
            1.0,
            "the steps leave the posterior of the rows present invariant; steps on minibatches do not",
        ),
        Assumption(
            "overlap",
            ess >= _MIN_RELATIVE_ESS,
            ess,
            _MIN_RELATIVE_ESS,
            "the weights of every stage leave enough of a chain's draws (relative effective sample size)",
        ),
        Assumption(
            "acceptance",
            acceptance >= _MIN_ACCEPTANCE,
            acceptance,
            _MIN_ACCEPTANCE,
            "enough steps of the last stage were accepted to separate copies of a draw",
        ),
    )
