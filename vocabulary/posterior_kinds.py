"""Kinds of posterior that Lethe stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

PosteriorKind = Literal["variational", "samples", "ensemble"]
"""`variational`: means and standard deviations of independent Gaussians.
`samples`: draws of SGLD, SGHMC or another chain, with weights after a deletion.
`ensemble`: members of a network, each trained on people of its own.
"""
POSTERIOR_KINDS: tuple[PosteriorKind, ...] = get_args(PosteriorKind)
POSTERIOR_TENSORS: Mapping[PosteriorKind, tuple[str, ...]] = {
    "variational": ("mean", "std"),
    "samples": ("samples", "chain"),
    "ensemble": ("members", "seed", "shard", "recipe"),
}
"""Names of the tensors in a posterior's file."""
LOG_WEIGHT_TENSORS = ("log_weights", "log_weights_error")
"""Names of two more, in a file of samples after a deletion: the log-weights of the draws, and their rounding error."""
Reading = Literal["draws", "weighted draws"]
"""`draws`: the stored draws as they are.
`weighted draws`: draws that are picked by their weights.
"""
MAX_EPOCHS = 1000
"""Largest number of passes over its rows that the recipe of an ensemble may ask of a member."""
