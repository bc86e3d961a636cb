from __future__ import annotations

import numpy as np
import pytest

from benchmarks.certificates.audit.energies import Energy, Linear, Mixture
from benchmarks.certificates.audit.extended import extended, mean_field_kl, solve
from benchmarks.certificates.audit.minimum import Minimum, NoMinimum, correction, minimise
from tests.benchmarks.certificates.audit.test_energies import CASES, LINEAR, MIXTURE, a_point


@pytest.mark.parametrize(("energy", "size"), CASES)
def test_minimisers_agree_with_fifty_digits(energy: Energy, size: int) -> None:
    minimum = minimise(energy, a_point(size))
    assert 0 < minimum.accuracy < 1e-15
    assert correction(energy, minimum) <= minimum.accuracy


def test_linear_minimum_in_closed_form() -> None:
    x, y, noise = LINEAR.features, LINEAR.targets, extended(LINEAR.noise_std) ** 2
    precision = x.T @ x / noise + np.eye(2) / extended(LINEAR.prior_std) ** 2
    optimum = np.concatenate([solve(precision, x.T @ y / noise), 1 / np.sqrt(precision.diagonal())])
    assert mean_field_kl(minimise(LINEAR, a_point(2)).at, optimum) < 1e-36


def test_the_check_sees_a_wrong_minimiser() -> None:
    minimum = minimise(MIXTURE, a_point(4))
    moved = Minimum(minimum.at * (1 + extended(1e-15)), minimum.accuracy)
    assert correction(MIXTURE, moved) > 10 * minimum.accuracy


def test_a_mixture_leaves_a_saddle_by_sweeps() -> None:
    rows = extended(np.concatenate([np.full((20, 1), -5.0), np.full((20, 1), 5.0)]))
    minimum = minimise(Mixture(rows, 2, 3.0), extended([0.1, -0.1, 1.0, 1.0]))
    assert sorted(np.round(minimum.at[:2].astype(float))) == [-5, 5]


def test_a_saddle_between_like_components_is_no_minimum() -> None:
    rows = extended(np.concatenate([np.full((20, 1), -5.0), np.full((20, 1), 5.0)]))
    with pytest.raises(NoMinimum, match="positive definite"):
        minimise(Mixture(rows, 2, 3.0), extended([0.0, 0.0, 1.0, 1.0]))


def test_an_energy_without_minimum_is_refused() -> None:
    with pytest.raises(NoMinimum, match="positive definite"):
        minimise(Linear(extended([[1.0]]), extended([1.0]), 1.0, 1.0), extended([0.0, np.nan]))
