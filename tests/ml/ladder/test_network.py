"""Small perceptron with rows that it can learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.network.certificate import certify_network
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting import network as network_forgetting
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.inference.network_training import train_to_convergence
from ml.ladder import network as module
from ml.ladder.climb import Outcome, Step
from ml.ladder.network import forget
from ml.ladder.network_costs import NetworkCosts
from ml.ladder.policy import Policy
from ml.models.mlp import MLP
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import learnable_rows

NETWORK = MLP(dimensions=8, hidden=4, classes=3, prior_std=0.3)
FORGOTTEN = torch.arange(6)
LOOSE = Policy(0.1, level="estimated")
BRIEF, REST = replace(SAFE_BNN, iterations=100, decay_every=25, learning_rate=1e-2), AveragedDescent(60, 40)


@pytest.fixture(scope="module")
def data() -> Tensor:
    return learnable_rows(NETWORK, 1000).float()


@pytest.fixture(scope="module")
def trained(data: Tensor) -> MeanFieldGaussian:
    training = replace(SAFE_BNN, iterations=600, decay_every=150, learning_rate=1e-2)
    return train_to_convergence(NETWORK, data, 1, training, AveragedDescent(300, 200))


@pytest.fixture(scope="module")
def forgot(data: Tensor, trained: MeanFieldGaussian) -> tuple[Outcome[MeanFieldGaussian], list[Step]]:
    steps: list[Step] = []
    return forget(NETWORK, trained, data, FORGOTTEN, LOOSE, on_step=steps.append), steps


def test_a_loose_policy_is_met_by_the_influence_step(
    forgot: tuple[Outcome[MeanFieldGaussian], list[Step]], trained: MeanFieldGaussian
) -> None:
    outcome, steps = forgot
    assert [(rung.name, rung.solver) for rung in outcome.rungs] == [("influence", "conjugate gradients")]
    assert (outcome.certificate.level, outcome.policy_met) == ("estimated", True)
    assert 0 < outcome.certificate.epsilon <= 0.1
    assert any("earlier deletions" in reservation for reservation in outcome.certificate.not_proved)
    assert not torch.equal(outcome.posterior.mean, trained.mean)
    assert [(step.rung, step.residual) for step in steps] == [("influence", outcome.certificate.constants.gradient)]


def test_a_skipped_update_gets_a_worse_certificate(
    forgot: tuple[Outcome[MeanFieldGaussian], list[Step]], trained: MeanFieldGaussian, data: Tensor
) -> None:
    skipped = certify_network(NETWORK, trained, trained, data, FORGOTTEN, torch.Generator().manual_seed(2))
    assert skipped.epsilon > 2 * forgot[0].certificate.epsilon


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings of these tests are so short that no other rung would be tried."""
    monkeypatch.setattr(module, "network_costs", lambda *_: NetworkCosts(0.1, 0.1, 1.0))


@pytest.mark.slow
@pytest.mark.usefixtures("cheap")
def test_a_strict_policy_climbs_to_retraining(trained: MeanFieldGaussian, data: Tensor) -> None:
    progress: list[tuple[str, float]] = []
    steps: list[Step] = []
    outcome = forget(
        NETWORK,
        trained,
        data,
        FORGOTTEN,
        Policy(1e-9, level="estimated"),
        lambda *where: progress.append(where),
        steps.append,
        BRIEF,
        REST,
    )
    assert [(rung.name, rung.steps) for rung in outcome.rungs] == [("influence", 1), ("warm", 1), ("retrain", 160)]
    assert all(rung.level == "estimated" and rung.epsilon > 1e-9 for rung in outcome.rungs[:-1])
    assert (outcome.certificate.level, outcome.certificate.epsilon, outcome.policy_met) == ("retrained", 0.0, True)
    assert [step.rung for step in steps] == ["influence", "warm", "retrain"]
    assert ("retrain", 0.5) in progress
    assert progress[-1] == ("done", 1.0)


def test_descent_on_all_rows_ends_below_the_influence_step(trained: MeanFieldGaussian, data: Tensor) -> None:
    epsilons = {}
    for rung in ("influence", "warm"):
        policy = Policy(1e-9, level="estimated", rungs=(rung,))  # type: ignore[arg-type]
        epsilons[rung] = forget(NETWORK, trained, data, torch.arange(60), policy).certificate.constants.excess
    assert epsilons["warm"] < 0.2 * epsilons["influence"]


def test_a_rung_that_costs_more_than_retraining_is_not_tried(trained: MeanFieldGaussian, data: Tensor) -> None:
    outcome = forget(NETWORK, trained, data, FORGOTTEN, LOOSE, training=BRIEF, descent=REST)
    assert [rung.name for rung in outcome.rungs] == ["influence", "warm", "retrain"]
    assert all("times as long as retraining" in str(rung.failure) for rung in outcome.rungs[:2])
    assert outcome.certificate.level == "retrained"


def test_a_network_too_large_for_estimates_is_retrained(
    trained: MeanFieldGaussian, data: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "can_be_read_whole", lambda *_: False)
    outcome = forget(NETWORK, trained, data, FORGOTTEN, LOOSE, training=BRIEF, descent=REST)
    assert all("deletions are retrained" in str(rung.failure) for rung in outcome.rungs[:-1])
    assert outcome.certificate.level == "retrained"
    with pytest.raises(NumericalFailure, match="influence, warm: the network has too many parameters"):
        forget(NETWORK, trained, data, FORGOTTEN, Policy(0.1, level="estimated", rungs=("influence", "warm")))


def test_a_policy_that_requires_a_proof_needs_retraining(trained: MeanFieldGaussian, data: Tensor) -> None:
    outcome = forget(NETWORK, trained, data, FORGOTTEN, Policy(0.1, level="proved"), training=BRIEF, descent=REST)
    assert [rung.name for rung in outcome.rungs] == ["retrain"]
    assert (outcome.certificate.level, outcome.policy_met) == ("retrained", True)
    again = train_to_convergence(NETWORK, data[6:], 0, BRIEF, REST)
    assert torch.equal(outcome.posterior.mean, again.mean)


@pytest.mark.usefixtures("cheap")
def test_a_step_that_is_not_trusted_is_recorded_and_the_next_rung_tried(
    trained: MeanFieldGaussian, data: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_forgetting, "_tilted", lambda *_: lambda _drift: 1.0)
    policy = Policy(0.1, level="estimated", rungs=("influence", "retrain"))
    outcome = forget(NETWORK, trained, data, FORGOTTEN, policy, training=BRIEF, descent=REST)
    failed, retrained = outcome.rungs
    assert "no step lowers the energy" in str(failed.failure)
    assert (retrained.name, outcome.policy_met) == ("retrain", True)


def test_invalid_groups_and_policies_are_refused(trained: MeanFieldGaussian, data: Tensor) -> None:
    with pytest.raises(InvalidInput, match="12 rows would be left"):
        forget(NETWORK, trained, data, torch.arange(988), LOOSE)
    policy = Policy(0.1, level="estimated", rungs=("newton",))
    with pytest.raises(NumericalFailure, match="allow influence, warm or retrain"):
        forget(NETWORK, trained, data, FORGOTTEN, policy)
