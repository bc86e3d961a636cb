from __future__ import annotations

import pytest
import torch

from ml.certify.network.sample import split_rows
from ml.certify.network.validation import validate
from tests.ml.certify.network.conftest import Case, Trained, groups, seeded


def test_rows_that_share_the_minimum_confirm_the_whole_excess(cases: list[Case]) -> None:
    case = cases[5]
    drift = case.step / 2
    validation = validate(case.sample(case.retained), drift, case.pull, case.step)
    assert validation.lower_limit == pytest.approx(case.excess(drift), rel=1e-9)


def test_the_step_stops_where_the_energy_stops_falling(cases: list[Case]) -> None:
    """A minimum that is too far away by half gives the whole excess too, one in the wrong direction gives none."""
    case = cases[5]
    drift = torch.zeros_like(case.step)
    sample = case.sample(case.retained)
    assert validate(sample, drift, case.pull, 1.5 * case.step).lower_limit == pytest.approx(case.excess(drift))
    assert validate(sample, drift, case.pull, case.step / 2).lower_limit == pytest.approx(0.75 * case.excess(drift))
    assert validate(sample, drift, case.pull, -case.step).lower_limit == 0


def test_the_deviation_is_that_of_the_energy_along_the_drift(cases: list[Case]) -> None:
    """(F(Δ) - F(0) - ∇F(0)ᵀΔ)/(½ΔᵀAΔ) - 1, here with the energy itself; no margin, since all rows are used."""
    for case in cases[:8]:
        drift, origin, energy = 3 * case.step, torch.zeros_like(case.step), case.trained.energy

        def rise(at: torch.Tensor, case: Case = case) -> float:
            return case.trained.energy.misfit(at, case.retained) + case.trained.energy.prior_energy(at)

        above = rise(drift) - rise(origin) - float(energy.gradient(origin, case.retained).dot(drift))
        expected = above / (0.5 * float(drift @ case.curvature @ drift)) - 1
        validation = validate(case.sample(case.retained), drift, case.pull, drift)
        assert abs(expected) > 1e-3
        assert validation.deviation == pytest.approx(abs(expected), rel=1e-6)
        assert validation.softer == pytest.approx(max(0.0, -expected), rel=1e-6)


def test_without_a_drift_only_the_way_to_the_minimum_counts(cases: list[Case]) -> None:
    case = cases[5]
    origin = torch.zeros_like(case.step)
    validation = validate(case.sample(case.retained), origin, case.pull, case.step)
    along = validate(case.sample(case.retained), case.step, case.pull, case.step)
    assert validation.deviation == 0
    assert validation.softer == pytest.approx(along.softer, abs=1e-9)


@pytest.mark.parametrize("factor", [20, -20], ids=["stiffer", "softer"])
def test_the_margins_of_a_sample_cover_the_deviation_of_all_rows(one_layer: Trained, factor: int) -> None:
    case = one_layer.case(groups(200)[0])
    drift = factor * case.step
    exact = validate(case.sample(case.retained), drift, case.pull, drift)
    assert exact.softer == pytest.approx(exact.deviation if factor < 0 else 0.0)
    deviation_covered = softer_covered = 0
    for seed in range(40):
        _, held_out = split_rows(case.retained, 50, 100, seeded(seed))
        sampled = validate(case.sample(held_out), drift, case.pull, drift)
        assert sampled.deviation < 2.5 * exact.deviation
        deviation_covered += sampled.deviation >= exact.deviation
        softer_covered += sampled.softer >= exact.softer
    assert deviation_covered >= 38
    assert softer_covered >= 38
