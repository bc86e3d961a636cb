from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ml.certify.ensemble import certify_ensemble, check_ensemble
from ml.errors import InvalidInput
from tests.ml.ensembles import lone_ensemble, small_ensemble
from tests.ml.networks import TINY, OneLayer
from vocabulary.bound import Bound, EnsembleConstants

FORGOTTEN = torch.tensor([0, 1, 2])


def test_the_certificate_names_the_retrained_members_and_the_digests_of_the_others() -> None:
    before, _ = lone_ensemble()
    after = before.replaced({1: None}, FORGOTTEN)
    certificate = certify_ensemble(before, after, FORGOTTEN)
    assert (certificate.level, certificate.epsilon, certificate.n_retained) == ("retrained", 0.0, 27)
    constants = Bound.model_validate(certificate.to_dict()).constants
    assert isinstance(constants, EnsembleConstants)
    (dropped,) = constants.retrained
    assert (dropped.member, dropped.rows_before, dropped.rows_after, dropped.iterations) == (1, 3, 0, 0)
    assert (constants.members_before, constants.members_after) == (3, 2)
    assert [(m.member, m.sha256) for m in constants.unchanged] == [(0, after.digest_of(0)), (2, after.digest_of(1))]


def test_a_member_that_should_not_have_changed_leaves_no_certificate() -> None:
    before, _ = lone_ensemble()
    after = before.replaced({1: None, 2: before.members[2] + 1e-15}, FORGOTTEN)
    certificate = certify_ensemble(before, after, FORGOTTEN)
    assert certificate.level == "none"
    assert "same bytes" in certificate.reasons[0]


def test_readiness_states_the_cost_of_a_deletion() -> None:
    ensemble, data = small_ensemble()
    readiness = check_ensemble(TINY, ensemble, data)
    assert readiness.ready
    assert readiness.levels == ("retrained",)
    largest = int(torch.bincount(ensemble.shard).max())
    iterations = [3 * (int(count) // 8) for count in torch.bincount(ensemble.shard)]
    assert readiness.numbers["share_of_training"] == max(iterations) / sum(iterations)
    assert str(largest) in readiness.findings[0]


def test_an_ensemble_of_another_network_or_of_other_rows_is_refused() -> None:
    ensemble, data = small_ensemble()
    with pytest.raises(InvalidInput, match="parameters"):
        check_ensemble(OneLayer(), ensemble, torch.cat([data[:, :3], data[:, 3:]], 1))
    with pytest.raises(InvalidInput, match="90 numbers for 80 rows"):
        check_ensemble(TINY, ensemble, data[:80])
    with pytest.raises(InvalidInput, match="shard"):
        replace(ensemble, shard=ensemble.shard + 1)
