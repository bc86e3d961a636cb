from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import new_key

DEPLOYED = {
    "DATABASE_URL": "postgresql://lethe:x9f2@db/lethe",
    "REDIS_URL": "redis://broker:6379/0",
    "LETHE_IDENTITY_KEY": new_key(),
    "LETHE_SIGNING_KEY": new_key(),
    "LETHE_LOG_KEY": new_key(),
}
KEYS = ("LETHE_SIGNING_KEY", "LETHE_LOG_KEY")
KEY_SOURCES = [f"{key}_{source}" for key in KEYS for source in ("FILE", "COMMAND")]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*DEPLOYED, *KEY_SOURCES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def deploy(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    for name, value in {**DEPLOYED, **changes}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
