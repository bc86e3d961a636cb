from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.paper import bnn, gmm, network_methods
from lethe.cli.main import app


def test_results_and_figures_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gmm, "CASES", ("gmm-vi",))
    command = ["paper", "gmm", "--out", str(tmp_path), "--removed", "40"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert {path.name for path in tmp_path.iterdir()} == {"gmm-vi-removed40-seed1.json", "gmm.png", "gmm.svg"}
    kept = json.loads((tmp_path / "gmm-vi-removed40-seed1.json").read_text())
    assert kept["ways"]["ours"]["kl"] <= 1e-9

    def refuse(*_: object) -> None:
        raise AssertionError("what is there must not be run again")

    monkeypatch.setattr(gmm, "compare", refuse)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert "paper's method" in again.stdout


@pytest.mark.soak
@pytest.mark.usefixtures("tiny_networks")
def test_networks_are_trained_once_and_shown_beside_their_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["paper", "bnn", "--quick", "--case", "lenet-vi", "--removed", "5,20", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert {path.name for path in (tmp_path / "quick").glob("lenet-vi-removed*")} == {
        f"lenet-vi-removed{removed}-seed{seed}.json" for removed in (5, 20) for seed in (0, 1)
    }
    assert (tmp_path / "quick" / "bnn.svg").exists()
    assert "retrained again" in first.stdout
    assert "control of descent" in first.stdout
    assert "with nothing removed" in first.stdout
    assert "nats)" in first.stdout or "(refused)" in first.stdout
    monkeypatch.setattr(network_methods.Variational, "train", None)  # which would fail if it were called again
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout


def test_a_perceptron_on_digits_stands_in_for_lenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(bnn.QUICK, sgld=replace(bnn.QUICK.sgld, iterations=30, burn_in=20, thinning=1), num_terms=2)
    monkeypatch.setattr(bnn, "DIGITS", tiny)
    command = ["paper", "bnn", "--digits", "--case", "mlp-sgld", "--removed", "5", "--out", str(tmp_path)]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "digits" / "mlp-sgld-removed5-seed0.json").exists()
    assert "not taken: " in outcome.stdout  # of descent, beside chains of thirty steps


def test_an_unknown_method_or_size_is_refused_before_any_work(tmp_path: Path) -> None:
    for bad in (["--case", "lenet-hmc"], ["--removed", "many"]):
        refused = CliRunner().invoke(app, ["paper", "bnn", "--out", str(tmp_path / "new"), *bad])
        assert refused.exit_code == 2
    assert not (tmp_path / "new").exists()
