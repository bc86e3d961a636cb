from __future__ import annotations

import numpy as np

from benchmarks.certificates.audit.energies import Mixture
from benchmarks.certificates.audit.extended import extended
from benchmarks.certificates.audit.lower_minima import has_lower_minimum
from benchmarks.certificates.audit.minimum import minimise

ROWS = np.concatenate([np.full((20, 1), centre) + np.linspace(-0.5, 0.5, 20)[:, None] for centre in (-9.0, 0.0, 9.0)])


def test_two_components_on_one_cluster_are_not_the_lowest_minimum() -> None:
    """One component covers two clusters, the other two share one; the best has a component on each."""
    energy = Mixture(extended(ROWS), 3, 5.0)
    widths = np.full(3, 0.3)
    poor = minimise(energy, extended(np.concatenate([[-4.5, 8.7, 9.3], widths])))
    best = minimise(energy, extended(np.concatenate([[-9.0, 0.0, 9.0], widths])))
    assert has_lower_minimum(energy, energy.value(poor.at), np.random.default_rng(0))
    assert not has_lower_minimum(energy, energy.value(best.at), np.random.default_rng(0))
