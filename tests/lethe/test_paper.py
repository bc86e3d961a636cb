from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lethe.cli import app
from ml.experiments import gmm


def test_results_and_figures_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gmm, "CASES", ("gmm-vi",))
    command = ["paper", "gmm", "--out", str(tmp_path), "--removed", "40"]
    first = CliRunner().invoke(app, command, env={"COLUMNS": "140"})
    assert first.exit_code == 0, first.output
    assert {path.name for path in tmp_path.iterdir()} == {"gmm-vi-removed40-seed1.json", "gmm.png", "gmm.svg"}
    kept = json.loads((tmp_path / "gmm-vi-removed40-seed1.json").read_text())
    assert kept["ways"]["ours"]["kl"] <= 1e-9

    def refuse(*_: object) -> None:
        raise AssertionError("what is there must not be run again")

    monkeypatch.setattr(gmm, "compare", refuse)
    again = CliRunner().invoke(app, command, env={"COLUMNS": "140"})
    assert again.exit_code == 0, again.output
    assert "paper's way" in again.stdout
