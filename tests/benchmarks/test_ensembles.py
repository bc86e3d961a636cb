from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks import ensembles
from lethe.cli.main import app


def test_a_deletion_costs_the_part_of_one_member_and_accuracy_little(tmp_path: Path) -> None:
    command = ["bench", "shards", "--case", "mlp", "--shards", "1,4", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, [*command, "--json"])
    assert shown.exit_code == 0, shown.output
    single, four = (json.loads(line) for line in shown.stdout.splitlines())
    assert (single["shards"], four["shards"]) == (1, 4)
    assert four["iterations_deletion"] < 0.35 * single["iterations_deletion"]
    assert four["test_error"] < min(four["member_error"], single["test_error"] + 2)
    assert four["test_error"] < 10
    finished = (tmp_path / "shards-mlp-4.json").read_text()
    assert f"{four['test_error']:.2f}" in CliRunner().invoke(app, command).stdout
    assert (tmp_path / "shards-mlp-4.json").read_text() == finished


def test_an_unknown_case_is_refused() -> None:
    refused = CliRunner().invoke(app, ["bench", "shards", "--case", "oracle"])
    assert refused.exit_code == 2
    assert "lenet or mlp" in refused.output


def test_a_share_of_a_single_network_needs_one() -> None:
    row = ensembles.Shards("mlp", 4, 5.0, 6.0, 8.0, 2.0, 80, 20)
    table = ensembles.shards_table([ensembles._with_ratios(row, [row])])
    assert [next(iter(column.cells)) for column in table.columns][-2:] == ["1/4.0", "–"]
    assert ensembles._with_ratios(row, [row])["share_of_single"] is None
