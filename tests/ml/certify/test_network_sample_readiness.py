from __future__ import annotations

import pytest

import ml
from ml.certify.network_sample_readiness import check_network_samples, rehearse
from ml.inference.network_diagnostics import diagnose_network
from ml.posteriors.sample_set import SampleSet
from tests.ml.network_draws import NETWORK, copies_of_one_point, draws, rows, scaled


def test_draws_of_the_posterior_are_ready() -> None:
    readiness = check_network_samples(NETWORK, draws(), rows())
    assert (readiness.levels, readiness.ready) == (("estimated",), True)
    assert readiness.numbers["posterior_in_reach"] == readiness.numbers["stored_draws_in_reach"] == 1.0
    assert readiness.numbers["relative_ess"] == pytest.approx(1.0)
    assert readiness.numbers["rehearsed_epsilon"] >= readiness.numbers["epsilon_in_reach"] > 0
    assert "5 of 5 would be certified" in readiness.findings[-1]


def test_another_law_is_ready_for_the_weaker_reference_only() -> None:
    readiness = check_network_samples(NETWORK, scaled(0.5), rows())
    assert (readiness.numbers["posterior_in_reach"], readiness.numbers["stored_draws_in_reach"]) == (0.0, 1.0)
    assert readiness.levels == ("estimated",)
    assert readiness.advice[0].startswith("the draws can be certified against the law of the stored draws only")
    assert "raise iterations" in readiness.advice[0]


def test_another_law_is_ready_where_the_policy_allows_the_weaker_reference() -> None:
    readiness = ml.readiness(NETWORK, scaled(0.5), rows(), epsilon=0.1, reference="stored draws")
    assert (readiness.levels, readiness.ready) == (("estimated",), True)
    assert readiness.findings[-1].startswith("certificates are against the law of the stored draws, as the policy")
    assert not ml.readiness(NETWORK, scaled(0.5), rows(), epsilon=0.1).ready
    worthless = ml.readiness(NETWORK, copies_of_one_point(1e-3), rows(), reference="stored draws")
    assert not worthless.ready


def test_copies_of_one_point_are_ready_for_nothing() -> None:
    readiness = check_network_samples(NETWORK, copies_of_one_point(1e-3), rows())
    assert readiness.levels == ()
    assert readiness.advice[0].startswith("no certificate without retraining")
    assert "hardly differ" in readiness.advice[0]


def test_a_rehearsal_changes_nothing_and_can_be_repeated() -> None:
    sample_set = SampleSet(draws().samples.clone(), draws().chain)
    diagnostics = diagnose_network(NETWORK, sample_set, rows())
    first, second = (rehearse(NETWORK, sample_set, rows(), diagnostics) for _ in range(2))
    assert [certificate.epsilon for certificate in first] == [certificate.epsilon for certificate in second]
    assert not bool(sample_set.log_weights.any())
