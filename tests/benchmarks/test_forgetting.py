from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.solvers import comparison as solvers
from lethe.cli.main import app
from ml.inference.bayes_by_backprop import SAFE_BNN

KEYS = {
    "case",
    "removed",
    "n",
    "kl_ours",
    "kl_paper",
    "kl_nothing",
    "kl_retrained",
    "seconds_ours",
    "seconds_paper",
    "seconds_retrain",
    "speedup_vs_paper",
    "speedup_vs_retrain",
    "residual_ours",
    "residual_paper",
}


def test_json_has_one_object_a_line_with_the_agreed_keys() -> None:
    shown = CliRunner().invoke(app, ["bench", "forget", "--case", "gmm-vi", "--removed", "40", "--json"])
    assert shown.exit_code == 0, shown.output
    (row,) = [json.loads(line) for line in shown.stdout.splitlines()]
    assert set(row) == KEYS
    assert (row["case"], row["removed"], row["n"]) == ("gmm-vi", 40, 2000)
    assert row["kl_ours"] < row["kl_paper"] < row["kl_nothing"]
    assert row["speedup_vs_paper"] == row["seconds_paper"] / row["seconds_ours"]


def test_a_table_for_people_and_a_clear_refusal() -> None:
    shown = CliRunner().invoke(app, ["bench", "forget", "--case", "gmm-vi", "--removed", "4"])
    assert "gmm-vi" in shown.stdout
    assert "4 of 2000" in shown.stdout
    refused = CliRunner().invoke(app, ["bench", "forget", "--case", "gmm-hmc"])
    assert refused.exit_code == 2
    assert "gmm-sgld" in refused.output
    assert "lenet-sghmc" in refused.output


@pytest.mark.soak
@pytest.mark.usefixtures("tiny_networks")
def test_networks_have_no_divergence_but_times_and_residuals(tmp_path: Path) -> None:
    command = ["bench", "forget", "--quick", "--case", "lenet-vi", "--removed", "20", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, [*command, "--json"])
    assert shown.exit_code == 0, shown.output
    row = json.loads(shown.stdout)
    assert set(row) == KEYS
    assert (row["kl_ours"], row["n"]) == (None, 500)
    assert row["speedup_vs_retrain"] == row["seconds_retrain"] / row["seconds_ours"]
    table = CliRunner().invoke(app, command)
    assert "not defined" in table.stdout


@pytest.mark.slow
def test_solvers_are_compared_product_by_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "MLP_TRAINING", replace(SAFE_BNN, iterations=100))
    monkeypatch.setattr(solvers, "MOST_STORED", 0)
    command = ["bench", "solve", "--case", "mlp", "--products", "20", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "preconditioned" in shown.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"solve-mlp.png", "solve-mlp.svg"}
    refused = CliRunner().invoke(app, ["bench", "solve", "--case", "resnet"])
    assert refused.exit_code == 2
