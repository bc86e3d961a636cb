from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from benchmarks.datasets.digits import digits
from benchmarks.paper import mlp
from benchmarks.paper.gmm import Comparison
from ml.errors import InvalidInput

SMALL = mlp.Setting(hidden=4, rows=400, draws=2, training=replace(mlp.FULL.training, iterations=300, decay_every=100))


@pytest.mark.slow
def test_ours_is_nearer_to_the_truth_than_the_paper_and_than_nothing() -> None:
    stages: list[tuple[str, float]] = []
    comparison = mlp.compare(16, on_progress=lambda stage, fraction: stages.append((stage, fraction)), setting=SMALL)
    ways = comparison.ways
    assert (comparison.case, comparison.removed, comparison.n) == ("mlp-vi", 16, 400)
    assert list(ways) == ["nothing", "paper", "ours", "retrained"]
    assert ways["ours"].kl < 0.1 * ways["paper"].kl
    assert ways["paper"].kl < ways["nothing"].kl
    assert ways["ours"].distance < ways["nothing"].distance
    assert ways["retrained"].kl > ways["nothing"].kl  # another basin
    assert 0 < comparison.residual_ours < 1
    assert 0 < comparison.residual_paper < 1
    assert min(way.seconds for name, way in ways.items() if name != "nothing") > 0
    assert stages[-1] == ("done", 1.0)
    assert Comparison.from_dict(json.loads(json.dumps(asdict(comparison)))) == comparison


def test_the_forgotten_are_of_one_class_and_decided_by_the_seed() -> None:
    data = torch.cat(digits())
    assert len(data) == mlp.FULL.rows
    rows = mlp.forgotten_rows(data, 64, seed=1)
    assert len(rows.unique()) == 64
    assert len(data[rows, -1].unique()) == 1
    assert torch.equal(rows, mlp.forgotten_rows(data, 64, seed=1))
    assert not torch.equal(rows, mlp.forgotten_rows(data, 64, seed=2))
    for removed in (0, 178):
        with pytest.raises(InvalidInput, match="pass fewer"):
            mlp.forgotten_rows(data, removed, seed=1)


def test_the_hidden_units_are_smooth_and_the_rest_is_the_perceptron() -> None:
    network = mlp.TanhMLP(2, 3, 2)
    theta = torch.linspace(-1, 1, network.parameter_count, dtype=torch.float64)
    w1, b1, w2, b2 = torch.split(theta, [6, 3, 6, 2])
    row = torch.tensor([[0.3, -2.0, 1.0]], dtype=torch.float64)
    expected = w2.reshape(2, 3) @ torch.tanh(w1.reshape(3, 2) @ row[0, :2] + b1) + b2
    assert torch.allclose(network.outputs(theta, row)[0], expected, rtol=1e-14, atol=1e-14)
