from __future__ import annotations

import pytest
from rich.console import Console

from lethe import cli


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables on one line a row, whatever terminal the tests run in."""
    monkeypatch.setattr(cli, "out", Console(width=200))
