from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console

import benchmarks.forgetting
import benchmarks.paper.report
from benchmarks import commands as experiment_commands
from benchmarks.datasets.digits import digits
from benchmarks.paper import bnn, network_methods
from lethe.cli import main as cli
from ml.certify.network import NetworkCheck, certify_network
from ml.inference.averaged_descent import Settling
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.models.mlp import MLP


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables on one line a row, whatever terminal the tests run in."""
    for module in (cli, experiment_commands):
        monkeypatch.setattr(module, "out", Console(width=200))


@pytest.fixture
def tiny_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `--quick` trains, forgets and certifies: a perceptron on five hundred digits, and each of it only just."""
    train, test = (rows[:500].float() for rows in digits())
    scene = bnn.Scene(MLP(dimensions=64, hidden=8, classes=10), train, test)
    for command in (benchmarks.forgetting, benchmarks.paper.report):
        monkeypatch.setattr(command, "fashion_scene", lambda _folder: scene)
    training, settling = replace(SAFE_BNN, iterations=50), Settling(20, 10)
    tiny = replace(bnn.QUICK, training=training, settling=settling, num_terms=2, seeds=2)
    monkeypatch.setattr(bnn, "QUICK", tiny)
    check = partial(certify_network, recipe=NetworkCheck(draws=4, products=10))
    monkeypatch.setattr(network_methods, "certify_network", check)
