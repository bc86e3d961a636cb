from __future__ import annotations

import json

import pytest
import torch

from ml.certify.effects import NetworkClassifier, measure_effects
from ml.certify.pac_bayes import Classifier
from ml.inference.variational import train
from ml.models.linear import LinearRegression
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet
from tests.ml.networks import labelled_rows


def labelled(n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    chance = (features @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)).sigmoid()
    labels = torch.rand(n, generator=generator, dtype=torch.float64) < chance
    return torch.cat([features, labels.double().unsqueeze(1)], 1)


def test_a_classifier_has_a_risk_before_and_after() -> None:
    family, data = LogisticRegression(3, prior_std=1.0, draws=8, seed=0), labelled(300, seed=1)
    forgotten = torch.arange(30)
    before, after = (train(family, rows, family.initial(rows, 0)).posterior for rows in (data, data[30:]))
    found = measure_effects(family, before, after, data, forgotten, 1e-6, never_seen=labelled(200, seed=2))
    assert found.pac_bayes is not None
    assert (found.pac_bayes.before.rows, found.pac_bayes.after.rows) == (300, 270)
    assert 0.1 < found.pac_bayes.after.risk < found.pac_bayes.after.bound < 1
    assert found.membership.after.forgotten is not None
    assert found.membership.worst is not None
    told = found.to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["release"][2] == {
        "draws": 100,
        "nats": pytest.approx(1e-4),
        "advantage": pytest.approx((0.5e-4) ** 0.5),
    }
    assert any("independent" in sentence for sentence in told["pac_bayes"]["not_proved"])


def test_samples_have_the_effects_of_what_they_are_samples_of() -> None:
    family, data = LogisticRegression(3, prior_std=1.0, draws=8, seed=0), labelled(300, seed=1)
    sides = [train(family, rows, family.initial(rows, 0)).posterior for rows in (data, data[30:])]
    noise = torch.randn(1000, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sets = [SampleSet(side.mean + side.std * noise, torch.arange(1000) % 2) for side in sides]
    never_seen = labelled(200, seed=2)
    found, expected = (measure_effects(family, *two, data, torch.arange(30), 1e-6, never_seen) for two in (sets, sides))
    assert found.pac_bayes is not None
    assert expected.pac_bayes is not None
    assert found.pac_bayes.after.risk == pytest.approx(expected.pac_bayes.after.risk, abs=0.01)
    assert found.pac_bayes.after.rows == 270
    assert found.membership.after.forgotten is not None
    assert expected.membership.after.forgotten is not None
    assert found.membership.after.forgotten.auc == pytest.approx(expected.membership.after.forgotten.auc, abs=0.02)
    assert found.membership.worst is not None
    assert expected.membership.worst is not None
    assert found.membership.worst.position == expected.membership.worst.position
    told = found.to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@pytest.mark.parametrize(("epsilon", "released"), [(0.05, 0), (0.0, 3)])
def test_of_a_network_no_advantage_follows_unless_it_was_retrained(epsilon: float, released: int) -> None:
    network, data = MLP(3, hidden=4, classes=2), labelled(300, seed=1).float()
    before, after = network.initial(seed=0), network.initial(seed=1)
    found = measure_effects(network, before, after, data, torch.arange(30), epsilon, labelled(200, seed=2).float())
    assert len(found.release) == released
    assert found.pac_bayes is not None
    assert (found.pac_bayes.before.rows, found.pac_bayes.after.rows) == (300, 270)
    assert found.membership.worst is not None


def test_the_error_of_a_network_is_that_of_any_classifier() -> None:
    network = MLP(4, hidden=6, classes=5)
    theta = torch.randn(network.parameter_count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = labelled_rows(network, 400)
    expected = Classifier(network, 5, 1.0).errors(theta, data)
    assert 0 < int(expected.sum()) < 400
    assert torch.equal(NetworkClassifier(network, 5, 1.0).errors(theta, data), expected)
    assert bool(NetworkClassifier(network, 5, 1.0).errors(0 * theta, data).all())


def test_a_regression_has_none_and_nothing_is_attacked_without_never_seen_rows() -> None:
    family, data = LinearRegression(3, noise_std=1.0, prior_std=1.0), labelled(60, seed=1)
    before, after = family.optimum(data), family.optimum(data[5:])
    found = measure_effects(family, before, after, data, torch.arange(5), 1e-9)
    assert found.pac_bayes is None
    assert found.to_dict()["pac_bayes"] is None
    assert (found.membership.worst, found.membership.n_never_seen) == (None, 0)
