from __future__ import annotations

import math
import subprocess
import sys

import pytest
from mpmath import betainc, exp, gammainc, mp, mpf, quad

from ml.numerics.quantiles import chi_square_quantile, f_quantile, largest_noncentrality, student_t_quantile


@pytest.mark.parametrize("tail", [0.3, 1e-3, 1e-7])
def test_quantiles_have_their_tails(tail: float) -> None:
    """Tails as incomplete beta and gamma functions, by mpmath."""
    t = student_t_quantile(tail, 12.5)
    assert float(betainc(mpf(12.5) / 2, 0.5, 0, 12.5 / (12.5 + t * t), regularized=True)) / 2 == pytest.approx(tail)
    f = f_quantile(tail, 3, 40)
    assert float(betainc(20, 1.5, 0, 40 / (40 + 3 * f), regularized=True)) == pytest.approx(tail, rel=1e-6)
    x = chi_square_quantile(tail, 7)
    assert float(gammainc(3.5, x / 2, mp.inf, regularized=True)) == pytest.approx(tail)


@pytest.mark.parametrize("observed", [3.0, 9.0, 40.0])
def test_beyond_the_largest_noncentrality_lower_values_are_rare(observed: float) -> None:
    """Two degrees of freedom: the squared length of a planar normal vector, ½ e^(-(r²+λ)/2) I_0(r √λ) d(r²)."""
    noncentrality = largest_noncentrality(observed, 2, 0.95)
    root = math.sqrt(noncentrality)
    below = quad(lambda r: r * exp(-(r * r + noncentrality) / 2) * mp.besseli(0, r * root), [0, math.sqrt(observed)])
    assert float(below) == pytest.approx(0.05)


def test_luck_does_not_lower_the_limit() -> None:
    assert largest_noncentrality(1e-9, 5, 0.95) == largest_noncentrality(chi_square_quantile(0.5, 5), 5, 0.95) > 8
    assert largest_noncentrality(20_000.0, 20_300, 0.95) == pytest.approx(335, abs=1)


def test_large_values_have_a_limit_that_is_never_too_low() -> None:
    searched, bounded = (largest_noncentrality(observed, 4, 0.95) for observed in (99_999.0, 100_001.0))
    assert searched + 2 < bounded < 1.0001 * searched
    assert largest_noncentrality(1e15, 1000, 0.95) == pytest.approx(1e15, rel=1e-6)
    assert largest_noncentrality(1e300, 1000, 0.95) == pytest.approx(1e300)


def test_scipy_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, ml.inference.diagnostics; print(sorted({'scipy', 'torch'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['torch']"
