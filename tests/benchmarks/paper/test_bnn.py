"""The experiment on a perceptron and digits: every part of it, in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.datasets.digits import digits
from benchmarks.paper import bnn, network_methods
from ml.errors import InvalidInput
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.models.mlp import MLP

TINY = replace(
    bnn.QUICK,
    training=replace(SAFE_BNN, iterations=300, decay_every=100),
    descent=AveragedDescent(iterations=60, averaged=40),
    sgld=replace(bnn.QUICK.sgld, iterations=120, burn_in=100, thinning=5),
    sghmc=replace(bnn.QUICK.sghmc, iterations=120, burn_in=100, thinning=5),
    recipe=replace(bnn.QUICK.recipe, descent=AveragedDescent(200, 100, learning_rate=1e-3)),
    num_terms=4,
    measures_rest=True,
)


@pytest.fixture(scope="module")
def scene() -> bnn.Scene:
    train, test = digits()
    return bnn.Scene(MLP(dimensions=64, hidden=16, classes=10), train.float(), test.float())


@pytest.fixture(scope="module")
def experiment(scene: bnn.Scene, tmp_path_factory: pytest.TempPathFactory) -> tuple[bnn.NetworkComparison, Path]:
    folder = tmp_path_factory.mktemp("bnn")
    removed = int((scene.train[:, -1] == bnn.CLASS).sum())
    return bnn.compare("lenet-vi", removed, 0, scene, TINY, folder), folder


@pytest.mark.soak
def test_a_class_is_forgotten_and_the_rest_is_not(experiment: tuple[bnn.NetworkComparison, Path]) -> None:
    comparison, _ = experiment
    scores = {name: way.score for name, way in comparison.ways.items() if way.score is not None}
    assert list(scores) == ["nothing", "paper", "shift", "descent", "descent control", "retrained", "again"]
    assert comparison.ours == "descent"  # a tenth of the rows
    assert scores["nothing"].forgotten_error < 20
    assert scores["retrained"].forgotten_error == scores["again"].forgotten_error == 100
    assert scores["descent"].forgotten_loss > 3 * scores["nothing"].forgotten_loss
    assert scores["descent"].forgotten_loss > scores["paper"].forgotten_loss
    assert scores["descent"].retained_error < scores["nothing"].retained_error + 3
    # The control takes the same steps, but stays near the original.
    assert abs(scores["descent control"].forgotten_loss - scores["nothing"].forgotten_loss) < 0.1


@pytest.mark.soak
def test_what_was_measured_makes_sense(experiment: tuple[bnn.NetworkComparison, Path]) -> None:
    comparison, _ = experiment
    assert comparison.n == 1437
    assert comparison.ways["nothing"].seconds == 0
    assert min(way.seconds for name, way in comparison.ways.items() if name != "nothing") > 0
    assert comparison.ways["descent"].seconds > comparison.ways["shift"].seconds
    assert comparison.residual_ours <= 0.2 < comparison.residual_paper
    assert comparison.ways["shift"].facts["agreement"] >= 0.25
    assert comparison.gradient_group is not None
    assert comparison.gradient_group > 0
    assert 0 < comparison.ways["paper"].facts["scale"] <= 0.1


@pytest.mark.soak
def test_a_stopped_run_goes_on_where_it_was(
    scene: bnn.Scene, experiment: tuple[bnn.NetworkComparison, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison, folder = experiment
    trained = sorted(path.name for path in folder.glob("*.safetensors"))
    assert trained == sorted(
        f"lenet-vi-{made}.safetensors"
        for made in (
            "without0-seed1",
            f"without{comparison.removed}-seed2",
            f"without{comparison.removed}-seed3",
            *(f"{way}{comparison.removed}-seed0" for way in ("paper", "shift", "descent", "descent-control")),
        )
    )

    def refuse(*_: Any) -> None:
        raise AssertionError("what is there must not be trained again")

    for slow in ("train", "forget"):
        monkeypatch.setattr(network_methods.Variational, slow, refuse)
    assert bnn.compare("lenet-vi", comparison.removed, 0, scene, TINY, folder) == comparison
    (folder / f"lenet-vi-removed{comparison.removed}-seed0.json").unlink()
    again = bnn.compare("lenet-vi", comparison.removed, 0, scene, TINY, folder)
    assert {name: way.score for name, way in again.ways.items()} == {
        name: way.score for name, way in comparison.ways.items()
    }
    (folder / "lenet-vi-without0-seed1.json").unlink()  # as if killed before the model was whole
    (folder / f"lenet-vi-removed{comparison.removed}-seed0.json").unlink()
    with pytest.raises(AssertionError, match="trained again"):
        bnn.compare("lenet-vi", comparison.removed, 0, scene, TINY, folder)


@pytest.mark.soak
@pytest.mark.parametrize("case", ["lenet-sgld", "lenet-sghmc"])
def test_sample_sets_are_forgotten_in_every_way_that_is_worth_it(case: str, scene: bnn.Scene, tmp_path: Path) -> None:
    stages: list[str] = []
    plan = replace(TINY, tempering=replace(TINY.tempering, moves=2))
    comparison = bnn.compare(case, 20, 0, scene, plan, tmp_path, lambda stage, _: stages.append(stage))
    assert list(comparison.ways) == list(bnn.WAYS)
    assert comparison.ours == "shift"
    assert comparison.ways["shift"].score != comparison.ways["nothing"].score
    for name in ("reweight", "temper"):
        way = comparison.ways[name]
        assert (way.score is None) == (way.refused is not None)
        assert way.score is None or way.facts["relative_ess"] > 0
    assert stages[-1] == "done"
    assert {"paper", "shift", "temper"} < set(stages)


def test_what_costs_more_than_retraining_is_not_taken(scene: bnn.Scene, tmp_path: Path) -> None:
    """Descent of a thousand steps, beside chains of 120; moves of 500 steps."""
    recipe = replace(TINY.recipe, descent=AveragedDescent(1_000, 500))
    plan = replace(TINY, recipe=recipe, tempering=replace(TINY.tempering, moves=500))
    comparison = bnn.compare("lenet-sgld", 20, 0, scene, plan, tmp_path)
    for name in ("descent", "temper"):
        assert comparison.ways[name].score is None
        assert (comparison.ways[name].refused or "").startswith("not taken: ")
        assert comparison.ways[f"{name} control"].refused == f"{name} was not taken"
    assert comparison.ours == "shift"


def test_a_larger_group_holds_every_smaller_one(scene: bnn.Scene) -> None:
    small, large = scene.forgotten(5), scene.forgotten(50)
    assert torch.equal(large[:5], small)
    assert bool((scene.train[large, -1] == bnn.CLASS).all())
    assert len(large.unique()) == 50


def test_bad_input_is_refused_before_any_work(scene: bnn.Scene, tmp_path: Path) -> None:
    for removed in (0, 1437):
        with pytest.raises(InvalidInput, match="cannot be removed"):
            bnn.compare("lenet-vi", removed, 0, scene, TINY, tmp_path)
    with pytest.raises(InvalidInput, match="lenet-sghmc"):
        bnn.compare("lenet-hmc", 5, 0, scene, TINY, tmp_path)
    assert list(tmp_path.iterdir()) == []
