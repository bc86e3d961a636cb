from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from ml.models import logistic_expectations
from ml.models.logistic_expectations import (
    MOST_NODES,
    QUADRATURE_ERROR,
    GaussianRule,
    LogisticRule,
    expect,
    expect_slopes,
)
from ml.numerics.rounding import gamma
from tests.ml.models import logistic_truth

WIDTHS, STEPS = logistic_expectations._WIDTHS, logistic_expectations._STEPS[:-1]
STRIP = 0.9 * math.pi
ROUNDING = gamma(MOST_NODES + 64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def error(computed: Tensor, exact: mpmath.mpf) -> float:
    return abs(float(mpmath.mpf(float(computed)) - exact))


@pytest.mark.parametrize("width", [0.0, 1e-8, 0.5, 0.9, 1.5, 3.0, 4.0, 4.5, 40.0, 200.0, 1e4])
@pytest.mark.parametrize("centre", [-700.0, -30.0, 0.0, 0.7, 700.0])
def test_expectations_agree_with_25_digits(centre: float, width: float) -> None:
    computed = expect(vector(centre), vector(width))
    unit = ROUNDING * float(computed.wide_size) * (1 + abs(centre) + width) + QUADRATURE_ERROR
    with mpmath.workdps(25):
        residual = logistic_truth.expect_slope(centre, width)
        curvature, third, fourth = (
            logistic_truth.expect_local(function, centre, width)
            for function in (logistic_truth.curvature, logistic_truth.third, logistic_truth.fourth)
        )
        loss = logistic_truth.expect_loss(centre, width)
        assert error(computed.loss, loss) <= 1e-14 * float(loss) + (1 + abs(centre) + width) * QUADRATURE_ERROR
        assert error(computed.residual, residual) <= ROUNDING * float(residual) + unit
        assert error(computed.curvature, curvature) <= unit
        assert error(computed.cross, width * third) <= unit
        assert error(computed.stretch, mpmath.mpf(width) ** 2 * fourth) <= unit


@pytest.mark.parametrize(("centre", "width"), [(0.7, 3.0), (-2.5, 40.0)])
def test_the_reference_agrees_with_another_quadrature(centre: float, width: float) -> None:
    breaks = sorted([-12.0, -6.0, 0.0, 6.0, 12.0, *((k - centre) / width for k in range(-9, 10, 3))])
    with mpmath.workdps(20):
        residual = mpmath.quad(lambda z: mpmath.npdf(z) * logistic_truth.slope(centre + width * z), breaks)
        third = mpmath.quad(lambda z: mpmath.npdf(z) * logistic_truth.third(centre + width * z), breaks)
        assert abs(logistic_truth.expect_slope(centre, width) - residual) < 1e-17
        assert abs(logistic_truth.expect_local(logistic_truth.third, centre, width) - third) < 1e-17


@pytest.mark.parametrize(("width", "step"), list(zip(WIDTHS, STEPS, strict=True)))
def test_steps_of_the_gaussian_rule_meet_the_error_theorem(width: float, step: float) -> None:
    strip, bound = STRIP / width, 1 / math.sin(STRIP)
    integral = bound**2 * math.exp(strip**2 / 2) * (2 + strip**2)
    assert 2 * integral / math.expm1(2 * math.pi * strip / step) <= 2**-60
    rule = GaussianRule(vector(0.0), vector(width), step)
    assert len(rule.z) <= MOST_NODES
    last = float(rule.z[-1])
    tail = last * math.exp(-(last**2) / 2) / math.sqrt(2 * math.pi) + math.erfc(last / math.sqrt(2)) / 2
    assert tail / 2 <= 2**-60  # f'' ≤ ¼, on two sides


def test_the_step_of_the_logistic_rule_meets_the_error_theorem() -> None:
    integral = STRIP / math.sin(STRIP) * 1.4
    assert integral < 13
    assert 2 * integral / math.expm1(2 * math.pi * STRIP / logistic_expectations.LOGISTIC_STEP) <= 2**-60
    rule = LogisticRule(vector(0.0), vector(5.0))
    assert len(rule.nodes) == MOST_NODES
    assert 2 * math.exp(-float(rule.nodes[-1])) <= 2**-60


def test_the_factors_of_the_logistic_rule_are_bounded_in_the_strip() -> None:
    """|Φ(z)| and |φ(z)(z²-1)| for |Im z| ≤ 0.9π/4 are below 1.4, and f'' has the integral y/sin y along Im = y."""
    for height in (0.0, 0.3, STRIP / 4):
        for real in (x / 4 for x in range(-24, 25)):
            z = mpmath.mpc(real, height)
            assert abs(mpmath.erfc(-z / mpmath.sqrt(2)) / 2) < 1.4
            assert abs(mpmath.npdf(z) * (z**2 - 1)) < 1.4
    integral = mpmath.quad(lambda x: abs(logistic_truth.curvature(mpmath.mpc(x, STRIP))), [-40, -1, 0, 1, 40])
    assert float(integral) == pytest.approx(STRIP / math.sin(STRIP), rel=1e-6)


def test_a_wide_gaussian_sees_a_step() -> None:
    """E f' tends to Φ(b/v), and v E f'' to φ(b/v)."""
    centre, width = vector(-1e8, 3e7, 1e8), vector(1e8, 1e8, 1e8)
    residual, curvature = expect_slopes(centre, width)
    normal = torch.distributions.Normal(vector(0.0), vector(1.0))
    assert torch.allclose(residual, normal.cdf(centre / width), rtol=0, atol=1e-14)
    assert torch.allclose(width * curvature, normal.log_prob(centre / width).exp(), rtol=0, atol=1e-14)


def test_rows_of_different_widths_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    centre, width = torch.linspace(-3, 3, 50, dtype=torch.float64), torch.linspace(0, 9, 50, dtype=torch.float64)
    shuffled = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(logistic_expectations, "_CHUNK_ROWS", (4, 3, 2, 7, 5))
    together = expect(centre[shuffled], width[shuffled])
    for position, row in enumerate(shuffled.tolist()):
        alone = expect(centre[row : row + 1], width[row : row + 1])
        assert float(together.cross[position]) == pytest.approx(float(alone.cross), rel=1e-13, abs=1e-16)
        assert float(together.loss[position]) == pytest.approx(float(alone.loss), rel=1e-13)
    residual, curvature = expect_slopes(centre[shuffled], width[shuffled])
    assert torch.equal(residual, together.residual)
    assert torch.equal(curvature, together.curvature)
