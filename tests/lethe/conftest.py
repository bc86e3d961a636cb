from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print each table row on one line, whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory, with no server configured; returns the embedded default's data folder."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".lethe"
