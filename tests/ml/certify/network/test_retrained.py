from __future__ import annotations

import json

from ml.certify.network.retrained import certify_retrained_network
from ml.certify.readiness import check_network
from tests.ml.networks import TINY, learnable_rows


def test_nothing_is_left_to_bound_and_the_constants_tell_how_near_to_rest_it_came() -> None:
    data, posterior = learnable_rows(TINY, 200), TINY.initial(seed=1)
    found = certify_retrained_network(TINY, posterior, data, seed=1, iterations=7)
    assert (found.epsilon, found.epsilon_reverse, found.level, found.n_retained) == (0.0, 0.0, "retrained", 200)
    assert "run from that seed" in found.not_proved[0]
    assert all(assumption.holds for assumption in found.assumptions)
    told = found.to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["constants"] == {"seed": 1, "iterations": 7, **check_network(TINY, posterior, data).numbers}
