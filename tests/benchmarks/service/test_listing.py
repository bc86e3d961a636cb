from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.service import listing as listing_bench
from lethe.cli.main import app
from service.store.tables import now

TIMES = ("median_ms", "worst_ms", "median_round_trip_ms", "worst_round_trip_ms")


def test_one_object_a_line_for_each_filter(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgresql)
    monkeypatch.setattr(listing_bench, "ROUNDS", 2)
    shown = CliRunner().invoke(app, ["bench", "listing", "--rows", "1000", "--json"])
    assert shown.exit_code == 0, shown.output
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["filter"] for row in rows] == list(listing_bench.filters(now()))
    for row in rows:
        assert set(row) == {"filter", "rows", *TIMES}
        assert row["rows"] == 1000
        assert 0 < row["median_ms"] <= row["worst_ms"]
        assert 0 < row["median_round_trip_ms"] <= row["worst_round_trip_ms"]


def test_a_table_for_people() -> None:
    table = listing_bench.show([listing_bench.FilterTimes("overdue", 1000, 0.5, 2.0, 1.0, 3.0)])
    assert (table.row_count, table.title) == (1, "A page of 50 of 1,000 deletions, milliseconds")
