"""Checks of the deployment files by reading them: no container engine runs in the tests."""

from __future__ import annotations

from pathlib import Path

import typer

from lethe.cli.main import app
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[1]


def setting_variables() -> dict[str, str]:
    """Return the setting of each environment variable."""
    fields = Settings.model_fields.items()
    return {str(field.validation_alias or f"LETHE_{name.upper()}"): name for name, field in fields}


def is_known_variable(variable: str) -> bool:
    """Return whether a variable is a setting or read by fsspec and its S3 library."""
    return variable in setting_variables() or variable.startswith(("AWS_", "FSSPEC_"))


def check_command(words: list[str]) -> None:
    """Raise unless `lethe` has the command with these options."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands[words[0]].make_context(words[0], words[1:])
