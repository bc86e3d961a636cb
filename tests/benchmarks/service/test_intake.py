from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lethe.cli.main import app


@pytest.mark.slow
def test_both_servers_answer_and_the_agreed_keys_are_there(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgresql)
    command = ["bench", "intake", "--rounds", "1", "--posts", "40", "--connections", "4", "--json"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    row = json.loads(shown.stdout)
    assert set(row) == {"ours_rps", "bare_rps", "ratio", "ours_p99_ms", "bare_p99_ms"}
    assert row["ratio"] == row["ours_rps"] / row["bare_rps"]
    assert min(row.values()) > 0
