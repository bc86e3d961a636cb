"""Certificates of networks, against the minimum of their own tilted energy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.network import certificate as module
from ml.certify.network.certificate import (
    DEFAULT_RECIPE,
    INFLATION,
    CertificationRecipe,
    certify_network,
)
from ml.errors import InvalidInput, NumericalFailure
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.certify.network.conftest import DRAWS, Case, Trained, seeded

ALL = CertificationRecipe(draws=DRAWS)


def certify(
    trained: Trained, after: MeanFieldGaussian, forgotten: Tensor, recipe: CertificationRecipe = ALL, seed: int = 0
) -> Certificate:
    return certify_network(trained.network, trained.posterior, after, trained.data, forgotten, seeded(seed), recipe)


def failed(certificate: Certificate) -> list[str]:
    return [assumption.name for assumption in certificate.assumptions if not assumption.holds]


def test_the_estimate_is_what_the_descent_found_and_left_enlarged(smooth: Trained, cases: list[Case]) -> None:
    certificate = certify(smooth, smooth.moved(cases[2].step / 2), cases[2].forgotten)
    constants = certificate.constants
    expected = INFLATION * (constants.excess + constants.unsolved) + constants.rounding + constants.widths
    assert certificate.epsilon == pytest.approx(expected)
    assert certificate.interval == (constants.excess, certificate.epsilon)
    assert (constants.rows, constants.reads) == (len(cases[2].retained), DRAWS)


def test_it_covers_the_networks_own_excess(smooth: Trained, cases: list[Case]) -> None:
    for case in cases[:4]:
        for drift in (0 * case.step, case.step / 2):
            certificate = certify(smooth, smooth.moved(drift), case.forgotten)
            truth = case.own_excess(drift)
            assert certificate.level == "estimated"
            assert certificate.interval[0] <= truth + 1e-9  # type: ignore[index]
            assert truth <= certificate.epsilon - certificate.constants.widths <= 1.6 * truth + 1e-6


def test_with_all_rows_the_gradient_and_the_excess_of_nothing_are_exact(smooth: Trained, cases: list[Case]) -> None:
    for case in cases[:3]:
        constants = certify(smooth, smooth.moved(case.step / 2), case.forgotten).constants
        assert constants.gradient == pytest.approx(case.own_gradient(case.step / 2), rel=1e-6)
        assert constants.excess_of_nothing == pytest.approx(case.own_excess(0 * case.step), rel=0.1)
        assert constants.linearised == pytest.approx(case.excess(case.step / 2), rel=0.6)
        assert constants.pull_norm == pytest.approx(case.gradient(0 * case.step), rel=1e-9)


def test_both_directions_are_those_to_the_minimum(smooth: Trained, cases: list[Case]) -> None:
    """With the widths of the posterior before, both divergences are ½‖x/σ‖² plus the excess of the widths."""
    case = cases[5]
    constants = certify(smooth, smooth.posterior, case.forgotten).constants
    mean_part = 0.5 * float((case.step / smooth.posterior.std).square().sum())
    assert constants.divergence == pytest.approx(mean_part + constants.widths, rel=0.6)
    assert constants.divergence_reverse == pytest.approx(constants.divergence, rel=0.1)
    assert constants.divergence_reverse != constants.divergence
    assert constants.paper_epsilon > constants.divergence


def test_a_step_that_did_not_forget_costs_more(smooth: Trained, cases: list[Case]) -> None:
    case = cases[3]
    half_step = torch.linalg.solve(case.curvature, smooth.case(case.forgotten[:2]).pull)
    honest, skipped, backwards, half = (
        certify(smooth, smooth.moved(drift), case.forgotten).epsilon
        for drift in (case.own_step, 0 * case.step, -case.step, half_step)
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


def test_a_descent_that_may_have_left_much_certifies_nothing(smooth: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEGLIGIBLE", 0.0)
    certificate = certify(smooth, smooth.posterior, torch.arange(8), replace(ALL, max_remaining=1e-15))
    assert (certificate.level, certificate.epsilon, certificate.interval) == ("none", math.inf, None)
    assert failed(certificate)[0] == "solved"
    assert "not shown: the descent" in certificate.reasons[0]


def test_a_network_too_large_to_be_read_whole_gets_no_estimate(
    smooth: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "can_be_read_whole", lambda *_: False)
    with pytest.raises(NumericalFailure, match="deletions are retrained"):
        certify(smooth, smooth.posterior, torch.arange(3))


def test_a_network_that_training_left_near_no_minimum_certifies_nothing(smooth: Trained) -> None:
    """Around a random point the tilted energy has no minimum nearby: the descent goes far, or does not end."""
    posterior = MeanFieldGaussian(2 * torch.randn(31, generator=seeded(5)).double(), smooth.posterior.std)
    certificates = [
        certify_network(smooth.network, posterior, posterior, smooth.data, group, seeded(), ALL)
        for group in (torch.arange(3), torch.arange(100, 110))
    ]
    assert [certificate.level for certificate in certificates] == ["none", "none"]


def test_the_generator_determines_the_estimate_and_nothing_is_proved(smooth: Trained) -> None:
    first, again, other = (
        certify(smooth, smooth.posterior, torch.arange(5), ALL, seed).constants.lipschitz for seed in (0, 0, 1)
    )
    assert first == again != other
    certificate = certify(smooth, smooth.posterior, torch.arange(5))
    assert certificate.level == "estimated"
    assert math.isnan(certificate.epsilon_reverse)
    assert any("not convex" in sentence for sentence in certificate.not_proved)
    assert certificate.n_retained == 395


def test_invalid_input_is_refused(smooth: Trained) -> None:
    short = MeanFieldGaussian(smooth.posterior.mean[1:], smooth.posterior.std[1:])
    with pytest.raises(InvalidInput, match="this network has 31 parameters"):
        certify(smooth, short, torch.arange(3))
    with pytest.raises(InvalidInput, match="named twice"):
        certify(smooth, smooth.posterior, torch.tensor([1, 1]))
    with pytest.raises(InvalidInput, match="a factor of at least 1"):
        replace(DEFAULT_RECIPE, max_nonlinear=0.9)
    with pytest.raises(InvalidInput, match="max_products"):
        replace(DEFAULT_RECIPE, max_products=1)
