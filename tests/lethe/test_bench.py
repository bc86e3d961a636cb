from __future__ import annotations

import json

from typer.testing import CliRunner

from lethe.cli import app

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
    shown = CliRunner().invoke(app, ["bench", "forget", "--case", "gmm-vi", "--removed", "4"], env={"COLUMNS": "140"})
    assert "gmm-vi" in shown.stdout
    assert "4 of 2000" in shown.stdout
    refused = CliRunner().invoke(app, ["bench", "forget", "--case", "gmm-hmc"])
    assert refused.exit_code == 2
    assert "gmm-sgld" in refused.output
