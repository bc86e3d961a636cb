from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.certificates import certify_figure
from lethe.cli.main import app

KEYS = {
    "family",
    "trials",
    "violations",
    "median_ratio",
    "p95_ratio",
    "issued",
    "seed",
    "epsilon",
    "ratios",
    "median_ratio_1pct",
    "median_ratio_5pct",
    "published_above_policy",
    "unpublished",
    "without_retraining",
    "rungs",
    "seconds",
}


def test_json_has_one_object_a_line_and_family_with_the_agreed_keys(tmp_path: Path) -> None:
    out = tmp_path / "results"
    command = ["bench", "certify", "--family", "linear,mixture", "--trials", "10", "--seed", "2"]
    shown = CliRunner().invoke(app, [*command, "--epsilon", "1e-4", "--json", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["family"] for row in rows] == ["linear-regression", "gaussian-mixture"]
    for row in rows:
        assert set(row) == KEYS
        assert set(row["issued"]) == {"proved", "estimated", "retrained", "none"}
        assert (row["trials"], row["violations"], row["seed"], row["epsilon"]) == (10, 0, 2, 1e-4)
        assert sum(row["issued"].values()) == sum(row["rungs"].values()) == 10
        stored = json.loads((out / f"certify-{row['family']}.json").read_text())
        points = stored.pop("points")
        assert stored == row
        assert len(points) == 10
        assert all(point["kl"] <= point["epsilon"] <= 1e-4 for point in points)
    names = {f"certify-{row['family']}.{suffix}" for row in rows for suffix in ("json", "png", "svg")}
    assert {path.name for path in out.iterdir()} == names


def test_a_table_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify_figure, "draw", lambda *_: [])  # another test looks at it
    command = ["bench", "certify", "--family", "linear-regression", "--trials", "5", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "linear" in shown.stdout
    assert "violations" in shown.stdout
    assert "100.0%" in shown.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--family", "linear,lenet5"], "softmax-regression"),
        (["--trials", "0"], "--trials"),
        (["--epsilon", "-1"], "positive"),
    ],
)
def test_a_clear_refusal(options: list[str], message: str, tmp_path: Path) -> None:
    command = ["bench", "certify", "--out", str(tmp_path / "none"), *options]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert message in refused.output


def test_coverage_of_sample_sets_for_machines_and_people() -> None:
    command = ["bench", "coverage", "--trials", "5", "--seed", "1"]
    report = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (report["trials"], report["seed"]) == (5, 1)
    assert 5 <= report["issued"] + report["refused"] <= 10
    assert sum(stratum["issued"] for stratum in report["strata"]) == report["issued"]
    shown = CliRunner().invoke(app, command).stdout
    assert f"{report['issued']} certificates were issued after 5 sequences" in shown
    assert "weighted draws" in shown
