from __future__ import annotations

import json

import pytest
from rich.table import Table

from lethe.cli.output import print_note, print_result


def test_a_result_is_one_line_of_json_or_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row("ada")
    print_result({"name": "ada"}, [table, "done"], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": "ada"}
    print_result({"name": "ada"}, [table, "done"], as_json=False)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "done"
    assert any("ada" in line for line in printed[:-1])


def test_long_lines_are_not_broken_so_that_they_can_be_copied(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = "lethe verify " + "long/" * 30 + "certificate.json"
    print_result({}, [command], as_json=False)
    assert capsys.readouterr().out == f"{command}\n"


def test_notes_stay_out_of_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("restart the worker")
    assert capsys.readouterr() == ("", "restart the worker\n")
