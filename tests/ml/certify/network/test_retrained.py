from __future__ import annotations

import json

from ml.certify.network.rest import measure_rest
from ml.certify.network.retrained import certify_retrained_network
from tests.ml.networks import TINY, learnable_rows


def test_epsilon_is_zero_and_the_constants_show_how_well_training_converged() -> None:
    data, posterior = learnable_rows(TINY, 200), TINY.initial(seed=1)
    certificate = certify_retrained_network(TINY, posterior, data, seed=1, iterations=7)
    assert (certificate.epsilon, certificate.epsilon_reverse) == (0.0, 0.0)
    assert (certificate.level, certificate.n_retained) == ("retrained", 200)
    assert "run from that seed" in certificate.not_proved[0]
    assert all(assumption.holds for assumption in certificate.assumptions)
    content = certificate.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["constants"] == {"seed": 1, "iterations": 7, **measure_rest(TINY, posterior, data)}
