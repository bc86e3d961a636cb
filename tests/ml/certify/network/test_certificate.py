"""Certificates of networks, against the exact minimum of the linearised network."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.network.certificate import (
    DEFAULT_RECIPE,
    CertificationRecipe,
    _prepare,
    _residual_gradient,
    certify_network,
)
from ml.certify.network.excess import find_minimum, upper_limit
from ml.certify.network.sample import split_rows
from ml.certify.network.validation import validate
from ml.errors import InvalidInput
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.certify.network.conftest import DRAWS, Case, Trained, seeded

ALL = CertificationRecipe(draws=DRAWS, max_products=60)
SAMPLED = replace(ALL, rows=200, held_out_rows=700)


def certify(
    trained: Trained, after: MeanFieldGaussian, forgotten: Tensor, recipe: CertificationRecipe = ALL, seed: int = 0
) -> Certificate:
    return certify_network(trained.network, trained.posterior, after, trained.data, forgotten, seeded(seed), recipe)


def failed(certificate: Certificate) -> list[str]:
    return [assumption.name for assumption in certificate.assumptions if not assumption.holds]


@pytest.mark.parametrize("recipe", [ALL, SAMPLED], ids=["all rows", "sampled"])
def test_the_interval_runs_from_the_validated_to_the_upper_limit(
    smooth: Trained, cases: list[Case], recipe: CertificationRecipe
) -> None:
    recipe = replace(recipe, max_nonlinear=0.99)
    for case in cases[:3]:
        drift = case.step / 2
        certificate = certify(smooth, smooth.moved(drift), case.forgotten, recipe)
        rows, held_out = split_rows(case.retained, recipe.rows, recipe.held_out_rows, seeded())
        minimum = find_minimum(case.sample(rows), drift, case.pull, smooth.posterior.std, recipe.max_products)
        validation = validate(case.sample(held_out), drift, case.pull, minimum.drift)
        constants = certificate.constants
        assert (constants.rows, constants.products) == (len(rows), minimum.products)
        assert constants.excess == pytest.approx(minimum.excess, rel=1e-6)
        assert constants.made == pytest.approx(minimum.step_energy, rel=1e-6)
        high = upper_limit(minimum, validation) + constants.widths
        assert certificate.interval == pytest.approx((validation.lower_limit, high), rel=1e-6)
        assert certificate.interval[1] == certificate.epsilon  # type: ignore[index]


def test_with_all_rows_the_gradient_and_the_excess_of_nothing_are_exact(smooth: Trained, cases: list[Case]) -> None:
    for case in cases[:3]:
        constants = certify(smooth, smooth.moved(case.step / 2), case.forgotten).constants
        assert constants.gradient == pytest.approx(case.gradient(case.step / 2), rel=1e-6)
        assert constants.gradient_margin == 0
        assert constants.excess_of_nothing == pytest.approx(case.excess(0 * case.step), rel=0.1)
        assert constants.pull_norm == pytest.approx(case.gradient(0 * case.step), rel=1e-9)


def test_the_gradient_of_a_sample_lies_within_its_margin(smooth: Trained, cases: list[Case]) -> None:
    errors = []
    for seed, case in enumerate(cases):
        drift = -3 * case.step
        prepared = _prepare(smooth.network, smooth.posterior, smooth.moved(drift), smooth.data, case.forgotten, DRAWS)
        _, held_out = split_rows(case.retained, 200, 700, seeded(seed))
        gradient, margin = _residual_gradient(prepared, held_out)
        truth = case.gradient(drift)
        assert 0 < margin < 0.5 * truth
        errors.append(abs(gradient - truth) / margin)
    assert statistics.mean(error <= 1 for error in errors) >= 0.9


def test_both_directions_are_those_to_the_minimum(smooth: Trained, cases: list[Case]) -> None:
    """With the widths of the posterior before, both divergences are ½‖x/σ‖² plus the excess of the widths."""
    case = cases[5]
    constants = certify(smooth, smooth.posterior, case.forgotten).constants
    mean_part = 0.5 * float((case.step / smooth.posterior.std).square().sum())
    assert constants.divergence == pytest.approx(mean_part + constants.widths, rel=0.3)
    assert constants.divergence_reverse == pytest.approx(constants.divergence, rel=0.1)
    assert constants.divergence_reverse != constants.divergence
    assert constants.paper_epsilon > constants.divergence


@pytest.mark.parametrize("recipe", [ALL, SAMPLED], ids=["all", "sampled"])
def test_a_step_that_did_not_forget_costs_more(smooth: Trained, cases: list[Case], recipe: CertificationRecipe) -> None:
    case = cases[3]
    half_step = torch.linalg.solve(case.curvature, smooth.case(case.forgotten[:2]).pull)
    honest, skipped, backwards, half = (
        certify(smooth, smooth.moved(drift), case.forgotten, recipe).epsilon
        for drift in (case.step, 0 * case.step, -case.step, half_step)
    )
    assert skipped > 1.5 * honest
    assert backwards > 1.5 * skipped
    assert half > 1.5 * honest


def test_widths_that_are_unchanged_or_too_narrow_cost_more(smooth: Trained) -> None:
    forgotten = torch.arange(40)
    contributed = smooth.energy.fisher_diagonal(forgotten, seeded(9))
    precision = smooth.posterior.std**-2

    def widths(change: float) -> float:
        after = MeanFieldGaussian(smooth.posterior.mean, (precision + change * contributed).rsqrt())
        return float(certify(smooth, after, forgotten).constants.widths)

    assert 0 < widths(-1.0) < widths(0.0) < widths(1.0)


def test_a_solve_cut_short_certifies_nothing(smooth: Trained) -> None:
    certificate = certify(smooth, smooth.posterior, torch.arange(8), replace(ALL, max_products=4, max_unsolved=0.01))
    assert (certificate.level, certificate.epsilon, certificate.interval) == ("none", math.inf, None)
    assert failed(certificate) == ["solved"]
    assert "not shown: the solver" in certificate.reasons[0]


def test_a_network_that_is_not_linear_enough_certifies_nothing(smooth: Trained, cases: list[Case]) -> None:
    strict = replace(ALL, max_nonlinear=0.05)
    certificate = certify(smooth, smooth.moved(cases[4].step), cases[4].forgotten, strict)
    assert (certificate.level, certificate.epsilon) == ("none", math.inf)
    assert failed(certificate) == ["linearised"]
    assert certificate.assumptions[1].value > 0.05


def test_the_generator_determines_the_estimate_and_nothing_is_proved(smooth: Trained) -> None:
    first, again, other = (
        certify(smooth, smooth.posterior, torch.arange(5), SAMPLED, seed).epsilon for seed in (0, 0, 1)
    )
    assert first == again != other
    certificate = certify(smooth, smooth.posterior, torch.arange(5))
    assert certificate.level == "estimated"
    assert math.isnan(certificate.epsilon_reverse)
    assert any("linearised" in sentence for sentence in certificate.not_proved)
    assert certificate.n_retained == 995


def test_invalid_input_is_refused(smooth: Trained) -> None:
    short = MeanFieldGaussian(smooth.posterior.mean[1:], smooth.posterior.std[1:])
    with pytest.raises(InvalidInput, match="this network has 31 parameters"):
        certify(smooth, short, torch.arange(3))
    with pytest.raises(InvalidInput, match="named twice"):
        certify(smooth, smooth.posterior, torch.tensor([1, 1]))
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        replace(DEFAULT_RECIPE, max_nonlinear=1.0)
    with pytest.raises(InvalidInput, match="max_products"):
        replace(DEFAULT_RECIPE, max_products=1)
