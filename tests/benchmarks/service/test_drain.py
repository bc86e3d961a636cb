from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.service import drain as drain_bench
from benchmarks.service import drain_models
from benchmarks.service.drain import DrainResult, show
from lethe.cli.main import app


@pytest.mark.soak
@pytest.mark.timeout(400)  # three processes load torch, on a machine that may be busy
def test_batches_and_workers_are_measured_and_the_agreed_keys_are_there(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgresql)
    tiny = {**drain_models.CONFIG, "dimensions": 2, "classes": 2, "draws": 2}
    monkeypatch.setattr(drain_models, "CONFIG", tiny)
    monkeypatch.setattr(drain_bench, "MANY", 50)
    monkeypatch.setattr(drain_bench, "SHARED", 5)
    shown = CliRunner().invoke(app, ["bench", "drain", "--rows", "4000", "--rounds", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    row = json.loads(shown.stdout)
    assert set(row) == {"seconds_10", "seconds_1000", "cost_ratio", "two_worker_speedup"}
    assert row["cost_ratio"] == row["seconds_1000"] / row["seconds_10"]
    assert min(row.values()) > 0


def test_more_rounds_than_people_are_refused() -> None:
    shown = CliRunner().invoke(app, ["bench", "drain", "--rows", "4000", "--rounds", "3"])
    assert shown.exit_code == 2
    assert "8,000 rows" in shown.output


def test_a_table_for_people() -> None:
    table = show(DrainResult(seconds_10=2.0, seconds_1000=2.5, cost_ratio=1.25, two_worker_speedup=1.9))
    assert list(table.columns[1].cells) == ["2.00 s", "2.50 s", "1.25", "1.90"]
