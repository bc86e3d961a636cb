from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.commands import _results_folder, bench, paper


@pytest.mark.parametrize(
    ("app", "names"),
    [
        (
            bench,
            {
                "forget",
                "solve",
                "shards",
                "people",
                "certify",
                "coverage",
                "sabotage",
                "sequence",
                "audit",
                "listing",
                "intake",
                "drain",
                "log",
            },
        ),
        (paper, {"gmm", "bnn"}),
    ],
)
def test_every_command_has_a_help_text(app: object, names: set[str]) -> None:
    commands = {command.name: command for command in app.registered_commands}  # type: ignore[attr-defined]
    assert set(commands) == names
    for name in names:
        shown = CliRunner().invoke(app, [name, "--help"])  # type: ignore[arg-type]
        assert shown.exit_code == 0
        assert commands[name].callback.__doc__.splitlines()[0][:20] in shown.output


def test_quick_results_never_mix_with_full_results() -> None:
    folders = {_results_folder(Path("results"), form) for form in (None, "short", "quick", "digits")}
    assert len(folders) == 4
