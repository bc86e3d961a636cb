from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import ConfigurationError, load_settings


@pytest.mark.parametrize(("name", "most"), [("LETHE_LEASE_SECONDS", 45), ("LETHE_SWEEP_SECONDS", 10)])
def test_a_dead_workers_batch_must_continue_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setenv(name, str(most))
    load_settings()
    monkeypatch.setenv(name, str(most + 1))
    with pytest.raises(ConfigurationError, match=f"{name}.*choose at most {most}.*within 60 seconds"):
        load_settings()


def test_callback_targets_must_be_hosts_or_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_CALLBACK_ALLOW", "10.0.0.0/8, hooks.internal")
    assert load_settings().callback_targets.hosts == {"hooks.internal"}
    monkeypatch.setenv("LETHE_CALLBACK_ALLOW", "https://hooks.internal/")
    with pytest.raises(ConfigurationError, match=r"LETHE_CALLBACK_ALLOW.*list host names and networks") as refusal:
        load_settings()
    assert "https" not in str(refusal.value)


def test_an_empty_import_root_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the working directory."""
    for value, root in (("", None), (".", None), (str(tmp_path), tmp_path)):
        monkeypatch.setenv("LETHE_IMPORT_ROOT", value)
        assert load_settings(tmp_path / "data").import_root == root
