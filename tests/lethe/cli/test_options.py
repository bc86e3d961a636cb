"""The shared options, on a command of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lethe.cli.options import DEFAULT_DATA_DIR, DEFAULT_URL, AsJson, DataDir, Token, TokenFolder, Url

app = typer.Typer()


@app.command()
def remote(
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    typer.echo(json.dumps([url, token, str(data_dir), as_json]))


@app.command()
def local(data_dir: DataDir = None) -> None:
    typer.echo(json.dumps(data_dir and str(data_dir)))


def invoke(*words: str) -> object:
    return json.loads(CliRunner().invoke(app, words).stdout)


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("remote") == ["http://127.0.0.1:8000", None, ".lethe", False]
    for name in ("LETHE_URL", "LETHE_TOKEN", "LETHE_DATA_DIR"):
        monkeypatch.setenv(name, name.lower())
    assert invoke("remote") == ["lethe_url", "lethe_token", "lethe_data_dir", False]
    assert invoke("remote", "--url", "u", "--token", "t", "--data-dir", "d", "--json") == ["u", "t", "d", True]


def test_a_local_command_leaves_the_data_folder_to_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LETHE_DATA_DIR", "ignored")  # the settings read it
    assert invoke("local") is None
    assert invoke("local", "--data-dir", str(tmp_path)) == str(tmp_path)
