from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.certificates.audit import report as module
from benchmarks.certificates.audit import wrong_samples
from benchmarks.certificates.audit.report import Plan, show
from benchmarks.commands import bench

TINY = Plan(trials=12, samples=1, wrong=1, models=4, seed=1)


@pytest.fixture
def tiny_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "measure_costs", lambda _seed: {"a check": {"seconds": 1.0, "deletion": 10.0, "share": 0.1}}
    )
    monkeypatch.setattr(module, "QUICK", TINY)
    kinds = ("shifted by 3 sd", wrong_samples.SLIGHTLY_WIDE)
    monkeypatch.setattr(wrong_samples, "RECIPES", {kind: wrong_samples.RECIPES[kind] for kind in kinds})


@pytest.mark.usefixtures("tiny_audit")
def test_the_command_prints_the_counts_and_writes_report_and_figure(tmp_path: Path) -> None:
    answer = CliRunner().invoke(bench, ["audit", "--quick", "--json", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert report["trials"] >= 12
    assert report["issued"] >= 10
    assert report["violations"] == 0
    for key in ("coverage", "needless_refusals", "false_alarms", "wrong_samples_certified", "published_above_policy"):
        assert key in report
    assert report["checked_with_50_digits"]
    assert report["reference_checks"]["failed"] == 0
    assert json.loads((tmp_path / "audit.json").read_text())["seed"] == 1
    assert (tmp_path / "audit.png").exists()
    tables = show(report)
    assert [table.row_count for table in tables][2:] == [2, 4, 1]


def test_options_change_the_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[Plan] = []

    def record(plan: Plan, _folder: Path) -> dict[str, int]:
        plans.append(plan)
        return {}

    monkeypatch.setattr(module, "bench_audit", record)
    CliRunner().invoke(bench, ["audit", "--trials", "5", "--seed", "9", "--json", "--out", str(tmp_path)])
    assert (plans[0].trials, plans[0].seed, plans[0].samples) == (5, 9, module.FULL.samples)
