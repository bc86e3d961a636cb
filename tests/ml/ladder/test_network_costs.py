from __future__ import annotations

from dataclasses import replace

import pytest

from ml.inference.averaged_descent import SAFE_AVERAGED_DESCENT, AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.ladder.network_costs import network_costs
from ml.models.mlp import MLP

DIGITS = MLP(64, 16, 10)


@pytest.mark.parametrize("rows", [200, 1_437, 16_000])
def test_forgetting_is_cheaper_than_the_default_training(rows: int) -> None:
    costs = network_costs(DIGITS, rows, 4, SAFE_BNN, SAFE_AVERAGED_DESCENT)
    assert costs.relative("influence") < 1
    assert costs.relative("warm") < 1


def test_a_short_training_is_cheaper_than_forgetting() -> None:
    brief = replace(SAFE_BNN, iterations=50)
    costs = network_costs(DIGITS, 16_000, 4, brief, AveragedDescent(50, 20))
    assert costs.relative("influence") > 1
    assert costs.relative("warm") > costs.relative("influence")


def test_costs_of_retraining_are_those_of_its_minibatches() -> None:
    p = DIGITS.parameter_count
    costs = network_costs(DIGITS, 1_000, 4, SAFE_BNN, SAFE_AVERAGED_DESCENT)
    assert costs.retrain == 7_500 * (128 * p + 1e6)
