from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.service import log as log_bench
from benchmarks.service.log import LogGrowth, Size, show
from lethe.cli.main import app


def test_growth_is_measured_and_the_agreed_keys_are_there(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgresql)
    monkeypatch.setattr(log_bench, "SIZES", (300, 5_000))
    monkeypatch.setattr(log_bench, "AT_ONCE", 150)
    monkeypatch.setattr(log_bench, "ROUNDS", 5)
    shown = CliRunner().invoke(app, ["bench", "log", "--entries", "1000", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert set(result) == {"entries", "appends_per_second", "proof_ms", "verify_ms", "growth"}
    assert result["entries"] == 1_000
    assert min(result[key] for key in ("appends_per_second", "proof_ms", "verify_ms")) > 0
    assert [row["entries"] for row in result["growth"]] == [300, 1_000]
    for row in result["growth"]:
        assert 1 <= row["tiles_read"] <= 4
        assert 8 <= row["proof_length"] <= 10


def test_a_table_for_people() -> None:
    row = Size(1_000_000, 12_345.6, 1.234, 6.0, 20.0, 0.5)
    table = show(LogGrowth(1_000_000, 12_345.6, 1.234, 0.5, [row]))
    assert [list(column.cells) for column in table.columns] == [
        ["1,000,000"], ["12,346"], ["1.23"], ["6"], ["20"], ["0.50"],
    ]  # fmt: skip
