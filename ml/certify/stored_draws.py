"""Certificates of reference `stored draws`: a promise about the law π that the stored draws have, whatever it is.

A network's chains rarely pass for draws of its posterior. Weights still say something exact about their own law: with
the likelihood of the forgotten rows divided out, the reference is π_R(θ) ∝ π(θ)/p(S' | θ), and

    KL(π_R ‖ a draw picked by its weight) ≤ log(1 + χ²/N)

needs no gradient and no posterior. It says less: what else π has taken from the forgotten rows is unknown. It is issued
only where a policy asks for it, in words of its own. It is refused for draws of which it would be true and worthless:
copies of one point have even weights whatever they have learned, and chains that never met have no common law.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ml.certify.certificate import Assumption, Certificate
from ml.certify.importance import Estimate
from ml.certify.sample_constants import SampleConstants
from ml.certify.weight_limits import weight_assumptions
from ml.certify.weight_mixing import WeightMixing
from ml.inference.function_mixing import FunctionMixing

REFERENCE = (
    "the law of the stored draws, taken as given, with the likelihood of the forgotten rows divided out: "
    "not the posterior given the retained rows"
)
DIRECTION = (
    "epsilon is the upper end of an interval for KL(reference ‖ a stored draw picked by its weight); the other "
    "direction is not estimated"
)
TAKEN_AS_GIVEN = (
    "The law of the stored draws is taken as given. It was not shown, and is not claimed, to be the posterior given "
    "the rows: what the draws have taken from the forgotten rows in any other way than through their likelihood, for "
    "instance in early training or by repeating them, is unknown and is not removed."
)


def certify_stored_draws(
    constants: SampleConstants,
    divergence: Estimate,
    mixing: WeightMixing,
    functions: FunctionMixing,
    n_retained: int,
    not_proved: tuple[str, ...],
) -> Certificate:
    """Certify weighted draws against their own law. `not_proved` holds what every reading by weights leaves open."""
    constants = replace(constants, reading="weighted draws", estimate=divergence.value, undetectable=0.0)
    assumptions = (*weight_assumptions(constants, mixing.independent_draws), *mixing.assumptions(), _varied(functions))
    estimated = all(assumption.holds for assumption in assumptions)
    epsilon = divergence.high if estimated else math.inf
    return Certificate(
        epsilon=epsilon,
        epsilon_reverse=math.nan,
        level="estimated" if estimated else "none",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=n_retained,
        assumptions=assumptions,
        constants=constants,
        not_proved=(TAKEN_AS_GIVEN, *not_proved),
        interval=(divergence.low, epsilon) if estimated else None,
        reference_kind="stored draws",
    )


def _varied(functions: FunctionMixing) -> Assumption:
    complaints = tuple(functions.degeneracies())
    meaning = "the draws of several chains vary, and agree about most of a panel of rows"
    return Assumption("varied", not complaints, float(not complaints), 1.0, "; ".join((meaning, *complaints)))
