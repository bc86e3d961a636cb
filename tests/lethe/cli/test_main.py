from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from lethe.cli import main as cli
from lethe.cli.main import app
from service.settings import ConfigurationError

ROOT = Path(__file__).resolve().parents[3]
RUN = CliRunner()
COMMANDS = (
    *("demo", "up", "api", "worker", "sweep", "delete", "status", "certificate get", "verify", "verifier"),
    *(
        "log mirror",
        "log audit",
        "model check",
        "model polish",
        "model register",
        "model refresh",
        "train ensemble",
        "migrate",
        "secrets",
    ),
    *("token issue", "token list", "token revoke"),
    *("key list", "key rotate", "key add", "key retire", "key revoke", "key export"),
    *("key rotate-identity", "key accept-opendsr", "certificate reissue"),
)
PANELS = ("Try it", "Run it", "Use it", "Check it", "Administer it")


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the path of each command without subcommands, and the command."""
    subcommands = getattr(command, "commands", {})
    for name, subcommand in subcommands.items():
        yield from leaves(subcommand, f"{path} {name}".strip())
    if not subcommands:
        yield path, command


def test_help_is_a_tour_of_all_commands() -> None:
    shown = RUN.invoke(app, ["--help"]).output
    for word in ("demo", "up", "verify", "token", "bench", "DATABASE_URL", *PANELS):
        assert word in shown


def test_every_command_is_there_beside_those_of_benchmarks() -> None:
    paths = {path for path, _ in leaves(typer.main.get_command(app)) if not path.startswith(("bench", "paper"))}
    assert paths == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_every_option_has_a_help_text(path: str) -> None:
    shown = RUN.invoke(app, [*path.split(), "--help"])
    assert shown.exit_code == 0
    command = dict(leaves(typer.main.get_command(app)))[path]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help text"
        if "--json" in parameter.opts:
            assert parameter.help == "Print JSON."  # type: ignore[attr-defined]


def test_expected_errors_are_printed_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ConfigurationError("LETHE_X is missing: set it.")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "lethe: LETHE_X is missing: set it.\n"


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert RUN.invoke(app, ["--version"]).output.strip() == project["version"]


def test_a_production_install_has_every_package_but_benchmarks() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["lethe", "ml", "service", "vocabulary", "worker"]
    assert wheel["force-include"] == {"migrations": "service/store/migrations"}


def test_without_benchmarks_the_command_line_works_and_has_no_bench() -> None:
    script = """
import sys
sys.modules["benchmarks"] = None  # as if it were not installed
from lethe.cli.main import main
main()
"""
    help_text, bench = (
        subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
        for words in (["--help"], ["bench", "--help"])
    )
    assert help_text.returncode == 0, help_text.stderr
    assert "verify" in help_text.stdout
    assert not {"bench", "paper"} & {line.strip("│ ").split(" ")[0] for line in help_text.stdout.splitlines()}
    assert bench.returncode == 2
    assert "No such command 'bench'" in bench.stderr
