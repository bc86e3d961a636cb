from __future__ import annotations

import pytest
from rich.console import Console

from lethe import cli, experiment_commands


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables on one line a row, whatever terminal the tests run in."""
    for module in (cli, experiment_commands):
        monkeypatch.setattr(module, "out", Console(width=200))
