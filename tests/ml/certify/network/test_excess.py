"""The excess and its interval, against dense matrices of all retained rows."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.network.excess import Minimum, find_minimum, upper_limit
from ml.certify.network.sample import split_rows
from ml.certify.network.validation import Validation, validate
from tests.ml.certify.network.conftest import Case, Trained, groups, seeded

PRODUCTS = 60
MAX_UNSOLVED, MAX_NONLINEAR = 0.3, 0.5


def estimate(case: Case, drift: Tensor, rows: Tensor, held_out: Tensor) -> tuple[Minimum, Validation]:
    std = case.trained.posterior.std
    minimum = find_minimum(case.sample(rows), drift, case.pull, std, PRODUCTS)
    return minimum, validate(case.sample(held_out), drift, case.pull, minimum.drift)


def is_certified(minimum: Minimum, validation: Validation) -> bool:
    return minimum.unsolved <= MAX_UNSOLVED * minimum.excess and (
        max(validation.softer, validation.deviation) < MAX_NONLINEAR
    )


def test_with_all_rows_the_excess_is_that_of_the_dense_matrix_and_lies_in_its_interval(cases: list[Case]) -> None:
    certified = 0
    for case in cases:
        drift, truth = case.step / 2, case.excess(case.step / 2)
        minimum, validation = estimate(case, drift, case.retained, case.retained)
        assert minimum.excess <= truth * (1 + 1e-9)
        assert truth <= minimum.excess + minimum.unsolved <= 1.1 * truth
        assert minimum.step_energy == pytest.approx(0.5 * float(drift @ case.curvature @ drift), rel=1e-9)
        gap = minimum.drift - case.step
        assert 0.5 * float(gap @ case.curvature @ gap) <= minimum.unsolved
        assert (minimum.standard_error, minimum.rows) == (0, len(case.retained))
        if is_certified(minimum, validation):
            certified += 1
            assert validation.lower_limit <= truth * (1 + 1e-4)
            assert truth <= upper_limit(minimum, validation) < 4 * truth
    assert certified >= 15


def test_a_sample_overestimates_and_its_interval_holds_the_truth(cases: list[Case]) -> None:
    """After a fifth of the step."""
    ratios, certified = [], 0
    for seed, case in enumerate(cases):
        rows, held_out = split_rows(case.retained, 200, 700, seeded(seed))
        minimum, validation = estimate(case, case.step / 5, rows, held_out)
        truth = case.excess(case.step / 5)
        assert minimum.rows == 200
        assert minimum.standard_error > 0
        ratios.append(minimum.excess / truth)
        if is_certified(minimum, validation):
            certified += 1
            assert validation.lower_limit <= truth <= upper_limit(minimum, validation)
    assert certified >= 12
    assert 1.1 < statistics.mean(ratios) < 2


def test_the_excess_of_a_network_with_one_layer_is_that_of_its_own_energy(one_layer: Trained) -> None:
    for forgotten in groups(200):
        case = one_layer.case(forgotten)
        minimum, validation = estimate(case, torch.zeros_like(case.pull), case.retained, case.retained)
        assert upper_limit(minimum, validation) == pytest.approx(minimise_tilted_energy(case), rel=0.1)


def minimise_tilted_energy(case: Case) -> float:
    """Return F̃(0) - min F̃ of the network itself, by Newton's method with the network's own gradient."""
    energy, rows, pull = case.trained.energy, case.retained, case.pull
    origin, drift = torch.zeros_like(pull), torch.zeros_like(pull)
    slope = energy.gradient(origin, rows) + pull
    for _ in range(12):
        gradient = energy.gradient(drift, rows) - slope
        drift = drift - torch.linalg.solve(case.curvature, gradient)
    assert float(gradient.norm()) < 1e-8
    start, end = (energy.misfit(at, rows) + energy.prior_energy(at) - float(slope.dot(at)) for at in (origin, drift))
    return start - end


def test_a_solve_cut_short_bounds_what_it_left(cases: list[Case]) -> None:
    """The excess grows with the products and its upper limit falls, with the truth between them."""
    for case in cases[:6]:
        zero, std = torch.zeros_like(case.pull), case.trained.posterior.std
        truth, minima = case.excess(zero), []
        for products in (1, 2, 4, 8, 16):
            minimum = find_minimum(case.sample(case.retained), zero, case.pull, std, products)
            assert minimum.products <= products
            assert minimum.excess <= truth * (1 + 1e-9) <= (minimum.excess + minimum.unsolved) * (1 + 2e-9)
            minima.append(minimum)
        upper = [minimum.excess + minimum.unsolved for minimum in minima]
        assert upper == sorted(upper, reverse=True)
        assert [minimum.excess for minimum in minima] == sorted(minimum.excess for minimum in minima)


def test_what_is_unsolved_counts_rounding_in_single_precision(smooth: Trained) -> None:
    """The network runs in float32: the truth is that of the float64 matrix."""
    single = replace(smooth, data=smooth.data.float())
    for case in (smooth.case(group) for group in groups(1_000)[:5]):
        zero, std = torch.zeros_like(case.pull), smooth.posterior.std
        minimum = find_minimum(replace(case, trained=single).sample(case.retained), zero, case.pull, std, PRODUCTS)
        assert minimum.excess <= case.excess(zero) * (1 + 1e-5)
        assert case.excess(zero) <= minimum.excess + minimum.unsolved <= 1.1 * case.excess(zero)


@pytest.mark.parametrize(
    ("excess", "unsolved", "error", "softer", "deviation", "step_energy", "expected"),
    [
        (4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0),
        (3.0, 1.0, 0.0, 0.0, 0.0, 9.0, 4.0),
        (2.04, 0.0, 1.0, 0.0, 0.0, 9.0, 4.0),
        (4.0, 0.0, 0.0, 0.0, 0.5, 4.0, 9.0),
        (4.0, 0.0, 0.0, 0.25, 0.5, 4.0, 12.0),
    ],
)
def test_the_upper_limit_by_hand(
    excess: float, unsolved: float, error: float, softer: float, deviation: float, step_energy: float, expected: float
) -> None:
    """(√(excess + unsolved + 1.96 error) + k√(½ΔᵀAΔ))²/(1 - c)."""
    minimum = Minimum(torch.zeros(1), excess, unsolved, error, step_energy, products=1, rows=1)
    assert upper_limit(minimum, Validation(0.0, softer, deviation)) == pytest.approx(expected, rel=1e-12)
