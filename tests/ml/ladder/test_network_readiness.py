from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.network.could_fall import CouldFall
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.inference.network_training import converge_means
from ml.ladder import network_readiness as module
from ml.ladder.network_readiness import check_network
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, learnable_rows

SMOOTH = replace(TINY, activation="tanh")


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return learnable_rows(SMOOTH, 400)


@pytest.fixture(scope="module")
def converged(rows: Tensor) -> MeanFieldGaussian:
    training = replace(SAFE_BNN, iterations=1_000, learning_rate=1e-2, decay_every=250)
    trained = train_network(SMOOTH, rows, SMOOTH.initial(1), training, torch.Generator().manual_seed(0)).posterior
    return converge_means(SMOOTH, trained, rows, torch.Generator().manual_seed(0), AveragedDescent(100, 60))


@pytest.fixture
def fall(monkeypatch: pytest.MonkeyPatch) -> list[CouldFall]:
    """The fall that restarts find: the last of the list."""
    falls = [CouldFall(0.05, 0.02, 400.0)]
    monkeypatch.setattr(module, "could_fall", lambda *_: falls[-1])
    return falls


@pytest.fixture
def _rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions that get an estimate, without the seconds that rehearsing them takes."""
    monkeypatch.setattr(module, "_rehearse_groups", lambda *_: {1: 0.01})


@pytest.mark.usefixtures("fall")
def test_a_network_at_rest_is_ready_and_deletions_were_rehearsed(converged: MeanFieldGaussian, rows: Tensor) -> None:
    readiness = check_network(SMOOTH, converged, rows, epsilon=0.3)
    assert (readiness.levels, readiness.advice) == (("estimated",), ())
    assert 0 < readiness.numbers["epsilon_in_reach"] <= 0.3
    assert math.isfinite(readiness.numbers["epsilon_of_ten"])
    assert "a deletion of one random row, rehearsed without retraining, was estimated within" in readiness.findings[-2]
    assert "10 random rows" in readiness.findings[-1]


@pytest.mark.usefixtures("_rehearsed")
def test_restarts_must_find_nothing_that_the_policy_would_notice(
    fall: list[CouldFall], converged: MeanFieldGaussian, rows: Tensor
) -> None:
    def advice(nats: float, error: float, epsilon: float | None) -> tuple[str, ...]:
        fall.append(CouldFall(nats, error, 400.0))
        return tuple(
            line for line in check_network(SMOOTH, converged, rows, epsilon).advice if "can still fall" in line
        )

    assert advice(0.4, 0.01, 0.5) == ()
    assert "train means and widths longer" in advice(0.6, 0.01, 0.5)[0]
    assert advice(0.6, 0.01, None) == ()
    assert "can still fall by 1.1 nats" in advice(1.1, 0.01, None)[0]


@pytest.mark.usefixtures("_rehearsed")
def test_a_fall_within_its_sampling_error_cannot_be_told(
    fall: list[CouldFall], converged: MeanFieldGaussian, rows: Tensor
) -> None:
    fall.append(CouldFall(1.9, 1.0, 400.0))
    readiness = check_network(SMOOTH, converged, rows, epsilon=0.5)
    assert "whether more than 0.5 nats can be gained cannot be told: sampling moves the fall by 2" in readiness.findings
    assert readiness.ready


def test_widths_that_training_left_early_are_found_by_the_restarts(converged: MeanFieldGaussian, rows: Tensor) -> None:
    """The means are nearly at rest, and the widths are a tenth of what the rows support."""
    readiness = check_network(SMOOTH, MeanFieldGaussian(converged.mean, converged.std / 10), rows, epsilon=0.5)
    assert readiness.numbers["could_fall"] > 8
    assert any("train means and widths longer" in advice for advice in readiness.advice)


@pytest.mark.usefixtures("fall")
def test_a_policy_out_of_reach_is_said_beforehand(converged: MeanFieldGaussian, rows: Tensor) -> None:
    readiness = check_network(SMOOTH, converged, rows, epsilon=1e-9)
    assert any("such deletions are retrained" in finding for finding in readiness.findings)
    assert "deletions will have to retrain the model" in readiness.advice[-1]


@pytest.mark.usefixtures("fall")
def test_a_network_far_from_rest_is_told_to_be_polished(converged: MeanFieldGaussian, rows: Tensor) -> None:
    readiness = check_network(SMOOTH, MeanFieldGaussian(converged.mean + 0.5, converged.std), rows)
    assert "training has not converged" in readiness.advice[0]
    assert "lethe model polish" in readiness.advice[0]


@pytest.mark.usefixtures("fall")
def test_a_network_too_large_for_estimates_is_retrained_and_readiness_says_so(
    converged: MeanFieldGaussian, rows: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "can_be_read_whole", lambda *_: False)
    readiness = check_network(SMOOTH, converged, rows)
    assert (readiness.levels, readiness.ready) == ((), True)
    assert readiness.numbers["epsilon_in_reach"] == math.inf
    assert "deletions are retrained" in readiness.findings[-1]
