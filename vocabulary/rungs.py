"""Rungs of the ladder: the methods of forgetting that a worker tries in turn."""

from __future__ import annotations

from typing import Literal, get_args

RungName = Literal["influence", "newton", "reweight", "temper", "warm", "retrain"]
"""`influence`: one step along the influence of the forgotten rows.
`newton`: Newton steps on the retained rows.
`reweight`: weights for the draws of a sample set, which stay where they are.
`temper`: weights in several stages, with chain steps on the retained rows between them.
`warm`: training on the retained rows, started at the stored posterior.
`retrain`: training on the retained rows, from scratch.
"""
RUNGS: tuple[RungName, ...] = get_args(RungName)
"""All rungs, in the order in which they are tried. The last, retraining, cannot fail."""
DEFAULT_RUNGS: tuple[RungName, ...] = tuple(name for name in RUNGS if name not in ("reweight", "temper"))
"""Rungs of a policy that names none. Weights reveal the rows that they divide out: a policy has to name their rungs."""
