from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch

from ml.certify import effects
from ml.certify.effects import NetworkClassifier, measure_effects
from ml.certify.importance import weigh_unmoved
from ml.certify.pac_bayes import Classifier
from ml.errors import NumericalFailure
from ml.inference.members import predict
from ml.inference.variational import train
from ml.ladder.ensemble import forget
from ml.ladder.policy import Policy
from ml.models.linear import LinearRegression
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet
from tests.ml.ensembles import small_ensemble
from tests.ml.networks import TINY, labelled_rows
from vocabulary.posterior_kinds import Reading
from vocabulary.references import Reference


def labelled(n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    chance = (features @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)).sigmoid()
    labels = torch.rand(n, generator=generator, dtype=torch.float64) < chance
    return torch.cat([features, labels.double().unsqueeze(1)], 1)


def test_a_classifier_has_a_risk_bound_before_and_after() -> None:
    family, data = LogisticRegression(3, prior_std=1.0), labelled(300, seed=1)
    forgotten = torch.arange(30)
    before, after = (train(family, rows, family.initial(rows, 0)).posterior for rows in (data, data[30:]))
    effects = measure_effects(family, before, after, data, forgotten, 1e-6, never_seen=labelled(200, seed=2))
    assert effects.pac_bayes is not None
    assert (effects.pac_bayes.before.rows, effects.pac_bayes.after.rows) == (300, 270)
    assert 0.1 < effects.pac_bayes.after.risk < effects.pac_bayes.after.bound < 1
    assert effects.membership.after.forgotten is not None
    assert effects.membership.worst is not None
    content = effects.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["release"][2] == {
        "draws": 100,
        "nats": pytest.approx(1e-4),
        "advantage": pytest.approx((0.5e-4) ** 0.5),
    }
    assert any("independent" in sentence for sentence in content["pac_bayes"]["not_proved"])


def test_the_attack_on_an_ensemble_is_on_the_mean_of_its_predictions() -> None:
    before, data = small_ensemble()
    forgotten = torch.tensor([0, 1, 2])
    after = forget(TINY, before, data, forgotten, Policy(1e-6)).posterior
    effects = measure_effects(TINY, before, after, data, forgotten, 0.0, never_seen=labelled_rows(TINY, 40, seed=9))
    assert effects.pac_bayes is None
    assert [release.advantage for release in effects.release] == [0.0] * len(effects.release) != []
    chances = predict(TINY, after, data[3:, :-1]).gather(1, data[3:, -1:].long()).log().sort(0).values
    assert effects.membership.after.retained_quantiles[-1] == pytest.approx(float(chances[-1]))
    space = effects.function_space
    assert space is not None
    assert space.draws_after == len(after.members)
    chances_of_forgotten = predict(TINY, after, data[:3, :-1]).gather(1, data[:3, -1:].long())
    assert space.forgotten.label_after == pytest.approx(float(chances_of_forgotten.mean()))


def test_samples_have_the_effects_of_the_posterior_they_were_drawn_from() -> None:
    family, data = LogisticRegression(3, prior_std=1.0), labelled(300, seed=1)
    posteriors = [train(family, rows, family.initial(rows, 0)).posterior for rows in (data, data[30:])]
    noise = torch.randn(1000, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    chain = torch.arange(1000) % 2
    sample_sets = [SampleSet(posterior.mean + posterior.std * noise, chain) for posterior in posteriors]
    never_seen = labelled(200, seed=2)
    effects, expected = (
        measure_effects(family, *pair, data, torch.arange(30), 1e-6, never_seen) for pair in (sample_sets, posteriors)
    )
    assert effects.pac_bayes is not None
    assert expected.pac_bayes is not None
    assert effects.pac_bayes.after.risk == pytest.approx(expected.pac_bayes.after.risk, abs=0.01)
    assert effects.pac_bayes.after.rows == 270
    assert effects.membership.after.forgotten is not None
    assert expected.membership.after.forgotten is not None
    assert effects.membership.after.forgotten.auc == pytest.approx(expected.membership.after.forgotten.auc, abs=0.02)
    assert effects.membership.worst is not None
    assert expected.membership.worst is not None
    assert effects.membership.worst.position == expected.membership.worst.position
    content = effects.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_weighted_samples_have_the_effects_of_the_posterior_of_their_weights() -> None:
    """The draws stay: read by their weights they attack as draws of the retained posterior do, else as before."""
    family, data = LinearRegression(3, noise_std=1.0, prior_std=1.0), labelled(100, seed=1)
    forgotten, never_seen = torch.arange(5), labelled(200, seed=2)
    before, after = family.optimum(data), family.optimum(data[5:])
    noise = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    draws = before.mean + before.std * noise
    gaussians = [torch.distributions.Normal(posterior.mean, posterior.std) for posterior in (before, after)]
    log_before, log_after = (gaussian.log_prob(draws).sum(1) for gaussian in gaussians)
    even = SampleSet(draws, torch.arange(len(draws)) % 2)
    weighted = replace(even, log_weights=log_after - log_before)
    by_weight = measure_effects(family, even, weighted, data, forgotten, 1e-6, never_seen, reading="weighted draws")
    as_they_are = measure_effects(family, even, weighted, data, forgotten, 1e-6, never_seen)
    expected = measure_effects(family, before, after, data, forgotten, 1e-6, never_seen)
    assert as_they_are.membership.before == as_they_are.membership.after
    assert by_weight.membership.before != by_weight.membership.after
    assert by_weight.membership.after.forgotten is not None
    assert expected.membership.after.forgotten is not None
    assert by_weight.membership.after.forgotten.auc == pytest.approx(expected.membership.after.forgotten.auc, abs=0.02)
    assert by_weight.release[1].nats == pytest.approx(1e-4)
    assert as_they_are.release[1].nats == pytest.approx(1e-5)


@pytest.mark.parametrize(("epsilon", "released"), [(0.05, 0), (0.0, 3)])
def test_a_network_has_a_release_bound_only_if_it_was_retrained(epsilon: float, released: int) -> None:
    network, data = MLP(3, hidden=4, classes=2), labelled(300, seed=1).float()
    before, after = network.initial(seed=0), network.initial(seed=1)
    effects = measure_effects(network, before, after, data, torch.arange(30), epsilon, labelled(200, seed=2).float())
    assert len(effects.release) == released
    assert effects.pac_bayes is not None
    assert (effects.pac_bayes.before.rows, effects.pac_bayes.after.rows) == (300, 270)
    assert effects.membership.worst is not None
    space = effects.function_space
    assert space is not None
    assert space.never_seen is not None
    assert (space.forgotten.rows, space.retained.rows, space.never_seen.rows) == (30, 128, 128)
    assert (space.draws_before, space.draws_after) == (64, 64)
    assert space.forgotten.kl > space.forgotten.noise
    assert effects.to_dict()["function_space"] == space.to_dict()


@pytest.mark.parametrize(("reference", "released"), [("posterior", 3), ("stored draws", 0)])
def test_samples_of_a_network_are_read_with_their_weights(reference: Reference, released: int) -> None:
    network, data = MLP(3, hidden=4, classes=2), labelled(60, seed=1).float()
    noise = torch.randn(200, network.parameter_count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    before = SampleSet(noise, torch.arange(200) % 2)
    after = weigh_unmoved(network, before, data[:2])
    as_they_are, by_weight = (
        measure_effects(network, before, after, data, torch.arange(2), 0.1, reading=reading, reference=reference)
        for reading in get_args(Reading)
    )
    assert as_they_are.function_space is not None
    assert by_weight.function_space is not None
    assert as_they_are.function_space.forgotten.kl < 1e-15
    forgotten = by_weight.function_space.forgotten
    assert forgotten.label_after < forgotten.label_before  # draws that knew the rows lose weight
    assert len(by_weight.release) == released
    assert by_weight.pac_bayes is None  # no Gaussian stands for samples of a network


def test_the_classifier_of_networks_finds_the_same_errors_as_the_general_one() -> None:
    network = MLP(4, hidden=6, classes=5)
    theta = torch.randn(network.parameter_count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = labelled_rows(network, 400)
    expected = Classifier(network, 5, 1.0).errors(theta, data)
    assert 0 < int(expected.sum()) < 400
    assert torch.equal(NetworkClassifier(network, 5, 1.0).errors(theta, data), expected)
    assert bool(NetworkClassifier(network, 5, 1.0).errors(0 * theta, data).all())


def test_a_regression_has_no_risk_bound_and_no_attack_without_never_seen_rows() -> None:
    family, data = LinearRegression(3, noise_std=1.0, prior_std=1.0), labelled(60, seed=1)
    before, after = family.optimum(data), family.optimum(data[5:])
    effects = measure_effects(family, before, after, data, torch.arange(5), 1e-9)
    assert effects.pac_bayes is None
    assert effects.to_dict()["pac_bayes"] is None
    assert effects.to_dict()["function_space"] is None
    assert (effects.membership.worst, effects.membership.n_never_seen) == (None, 0)


def test_a_risk_that_cannot_be_bounded_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise NumericalFailure("not positive definite")

    monkeypatch.setattr(effects, "bound_risk", fail)
    family, data = LogisticRegression(3, prior_std=1.0), labelled(30, seed=1)
    posterior = family.initial(data, 0)
    measured = measure_effects(family, posterior, posterior, data, torch.arange(3), 1e-6)
    assert measured.pac_bayes is None
    assert measured.to_dict()["pac_bayes"] is None


def test_predictions_that_are_not_finite_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise NumericalFailure("not finite")

    monkeypatch.setattr(effects, "measure_function_space", fail)
    family, data = LogisticRegression(3, prior_std=1.0), labelled(30, seed=1)
    posterior = family.initial(data, 0)
    measured = measure_effects(family, posterior, posterior, data, torch.arange(3), 1e-6)
    assert measured.function_space is None
    assert measured.pac_bayes is not None
