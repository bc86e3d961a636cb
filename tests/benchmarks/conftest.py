from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

import benchmarks.forgetting
import benchmarks.paper.report
from benchmarks.datasets.digits import digits
from benchmarks.paper import bnn, network_methods
from ml.certify.network.certificate import CertificationRecipe, certify_network
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.models.mlp import MLP


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print each table row on one line, whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def tiny_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the networks of `--quick` by a perceptron on five hundred digits, trained and certified very briefly."""
    train, test = (rows[:500].float() for rows in digits())
    scene = bnn.Scene(MLP(dimensions=64, hidden=8, classes=10), train, test)
    for command in (benchmarks.forgetting, benchmarks.paper.report):
        monkeypatch.setattr(command, "fashion_scene", lambda _folder: scene)
    training, descent = replace(SAFE_BNN, iterations=50), AveragedDescent(20, 10)
    tiny = replace(bnn.QUICK, training=training, descent=descent, num_terms=2, seeds=2)
    monkeypatch.setattr(bnn, "QUICK", tiny)
    check = partial(certify_network, recipe=CertificationRecipe(draws=4, max_products=10))
    monkeypatch.setattr(network_methods, "certify_network", check)
