"""Search for minima of a mixture's energy below the one that a certificate refers to."""

from __future__ import annotations

import numpy as np

from benchmarks.certificates.audit.energies import Mixture
from benchmarks.certificates.audit.extended import Array

_STARTS = 8
_SWEEPS = 60
_CLEARLY_LOWER = 1e-2  # nats; less may be an unfinished descent


def has_lower_minimum(energy: Mixture, value: float, rng: np.random.Generator) -> bool:
    """Return whether descents from random rows as centres end clearly below `value`, in float64."""
    rows = energy.rows.astype(float)
    plain = Mixture(rows, energy.components, energy.prior_std)
    return any(plain.value(_descend(plain, rng)) < value - _CLEARLY_LOWER for _ in range(_STARTS))


def _descend(energy: Mixture, rng: np.random.Generator) -> Array:
    centres = energy.rows[rng.permutation(len(energy.rows))[: energy.components]].reshape(-1)
    at: Array = np.concatenate([centres, np.full(len(centres), (len(energy.rows) / energy.components) ** -0.5)])
    for _ in range(_SWEEPS):
        at = energy.sweep(at).astype(float)
    return at
