"""Reading the files for deployments. No engine runs here, so each promise that they make is checked by itself."""

from __future__ import annotations

from pathlib import Path

import typer

from lethe.cli.main import app
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[1]


def setting_variables() -> dict[str, str]:
    """The variable of each setting, and the setting."""
    fields = Settings.model_fields.items()
    return {str(field.validation_alias or f"LETHE_{name.upper()}"): name for name, field in fields}


def knows(variable: str) -> bool:
    """Settings, and what fsspec and its S3 library read for LETHE_ARTIFACT_URL."""
    return variable in setting_variables() or variable.startswith(("AWS_", "FSSPEC_"))


def check_command(words: list[str]) -> None:
    """Raise unless `lethe` has such a command, with such options."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands[words[0]].make_context(words[0], words[1:])
