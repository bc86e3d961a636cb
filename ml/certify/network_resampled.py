"""Certificates of networks whose chains were run anew on the retained rows, from a start that no row has influenced.

Nothing of the forgotten rows can be in such draws, whether or not they pass for draws of the posterior: they are their
own reference. What their diagnostics say is printed with them.
"""

from __future__ import annotations

from ml.certify.certificate import Assumption, Certificate
from ml.certify.samples import GIVEN, RETRAINED_DIRECTION
from ml.inference.diagnostics import Diagnostics

REFERENCE = "these samples themselves, drawn anew on the retained rows from a fresh start"
NOT_POSTERIOR = (
    "The draws are those of this sampler on the retained rows. That they are draws of the posterior was not shown: "
)
MAY_BE_POSTERIOR = (
    "The draws pass the checks of draws from the posterior given the retained rows; checks can refute that, not show "
    "it."
)


def certify_resampled_network(diagnostics: Diagnostics, n_retained: int) -> Certificate:
    """Certify a network's new draws: ε is 0 by construction."""
    meaning = "the chains started where no row had influenced them, and read the retained rows only"
    warning = diagnostics.warning
    return Certificate(
        epsilon=0.0,
        epsilon_reverse=0.0,
        level="retrained",
        reference=REFERENCE,
        direction=RETRAINED_DIRECTION,
        n_retained=n_retained,
        assumptions=(Assumption("fresh start", True, 1.0, 1.0, meaning),),
        constants=diagnostics,
        not_proved=(MAY_BE_POSTERIOR if warning is None else NOT_POSTERIOR + warning, *GIVEN),
        reference_kind="posterior" if warning is None else None,
    )
