"""Output of commands: results on standard output, as text or JSON; notes on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

out = Console()


def print_result(values: Mapping[str, Any], lines: Iterable[str | Table], as_json: bool) -> None:
    """Print the values as one line of JSON, or else the lines for people."""
    if as_json:
        typer.echo(json.dumps(values))
        return
    for line in lines:
        out.print(line, highlight=False, soft_wrap=isinstance(line, str))


def print_note(text: str) -> None:
    """Print to standard error, so that scripts read only the result."""
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)
