from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers.lanczos import smallest_eigenvalue

SIZE = 120


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_spectrum(values: Tensor) -> Tensor:
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=seeded(0), dtype=torch.float64))
    return basis * values @ basis.T


SPECTRA = {
    "clustered": torch.cat([1 + 1e-3 * torch.arange(SIZE // 2), 50 + 1e-3 * torch.arange(SIZE // 2)]).double(),
    "negative": torch.linspace(-3, 40, SIZE, dtype=torch.float64),
    "separated": torch.cat([torch.tensor([1e-3]), torch.linspace(5, 9, SIZE - 1)]).double(),
    "flat end": torch.logspace(-4, 2, SIZE, dtype=torch.float64),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_bound_is_below_and_the_ritz_value_above_the_smallest_eigenvalue(name: str) -> None:
    """From 100 starts: the bound may fail one time in twenty."""
    matrix = with_spectrum(SPECTRA[name])
    low, high = (float(end) for end in torch.linalg.eigvalsh(matrix)[[0, -1]])
    rounding = 1e-12 * high
    spectra = [smallest_eigenvalue(lambda v: matrix @ v, SIZE, 16, 0.95, seeded(seed)) for seed in range(100)]
    assert all(low - rounding <= spectrum.ritz_low <= spectrum.ritz_high <= high + rounding for spectrum in spectra)
    assert sum(spectrum.lower_bound <= low + rounding for spectrum in spectra) >= 95
    assert all(spectrum.lower_bound < spectrum.ritz_low and spectrum.steps == 16 for spectrum in spectra)


def test_a_raw_ritz_value_is_no_lower_bound() -> None:
    matrix = with_spectrum(SPECTRA["flat end"])
    ritz_values = [
        smallest_eigenvalue(lambda v: matrix @ v, SIZE, 16, 0.95, seeded(seed)).ritz_low for seed in range(20)
    ]
    assert all(ritz > 2e-4 for ritz in ritz_values)


def test_more_steps_and_less_confidence_bring_the_bound_nearer() -> None:
    matrix = with_spectrum(SPECTRA["negative"])

    def bound(steps: int, confidence: float) -> float:
        return smallest_eigenvalue(lambda v: matrix @ v, SIZE, steps, confidence, seeded(1)).lower_bound

    assert bound(16, 0.99) < bound(16, 0.9) < bound(60, 0.9) < -3


def test_the_correction_is_the_published_one() -> None:
    """With both ends uncertain, each with half of δ, the true spread s obeys s ≤ (high - low) + 2·missed·s."""
    matrix = with_spectrum(SPECTRA["negative"])
    spectrum = smallest_eigenvalue(lambda v: matrix @ v, SIZE, 40, 0.9, seeded(3))
    missed = (math.log(1.648 * math.sqrt(SIZE) / 0.05) / 79) ** 2
    spread = (spectrum.ritz_high - spectrum.ritz_low) / (1 - 2 * missed)
    assert spectrum.lower_bound == pytest.approx(spectrum.ritz_low - missed * spread, rel=1e-14)


@pytest.mark.parametrize("name", SPECTRA)
def test_after_as_many_steps_as_there_are_dimensions_it_is_exact(name: str) -> None:
    matrix = with_spectrum(SPECTRA[name])
    exact = torch.linalg.eigvalsh(matrix)
    spectrum = smallest_eigenvalue(lambda v: matrix @ v, SIZE, SIZE + 5, 0.95, seeded(2))
    assert spectrum.lower_bound == spectrum.ritz_low == pytest.approx(float(exact[0]), abs=1e-9)
    assert spectrum.ritz_high == pytest.approx(float(exact[-1]), rel=1e-12)


def test_it_stops_once_the_space_is_exhausted() -> None:
    spectrum = smallest_eigenvalue(lambda v: 3 * v, SIZE, 10, 0.95, seeded(0))
    assert (spectrum.steps, spectrum.lower_bound, spectrum.ritz_high) == (1, pytest.approx(3.0), pytest.approx(3.0))


def test_too_few_steps_bound_nothing() -> None:
    matrix = with_spectrum(SPECTRA["negative"])
    assert smallest_eigenvalue(lambda v: matrix @ v, SIZE, 3, 0.95, seeded(0)).lower_bound == -math.inf


def test_nan_and_invalid_settings_are_refused() -> None:
    with pytest.raises(NumericalFailure, match="scale of the prior"):
        smallest_eigenvalue(lambda v: v * math.nan, 5, 3, 0.9, seeded(0))
    for size, steps, confidence in ((0, 1, 0.9), (5, 0, 0.9), (5, 1, 1.0)):
        with pytest.raises(InvalidInput, match="between 0 and 1"):
            smallest_eigenvalue(lambda v: v, size, steps, confidence, seeded(0))
