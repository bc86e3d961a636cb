from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from service.settings import ConfigurationError, load_settings
from tests.service.settings.conftest import DEPLOYED, deploy


def test_embedded_mode_creates_its_secrets_once() -> None:
    first = load_settings()
    second = load_settings()
    assert first.embedded
    assert first.database.startswith("sqlite:///")
    assert first.identity_keys() == second.identity_keys()
    assert [first.signing_key_bytes()] != first.identity_keys()
    assert first.log_key_bytes() == second.log_key_bytes() != first.signing_key_bytes()
    for name in ("identity_key.key", "signing_key.key", "log_key.key"):
        mode = (first.data_dir / "secrets" / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600


def test_deployed_settings_are_used_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(monkeypatch)
    settings = load_settings()
    assert not settings.embedded
    assert settings.database == "postgresql+psycopg://lethe:x9f2@db/lethe"
    assert settings.broker == "redis://broker:6379/0"
    assert not (settings.data_dir / "secrets").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *((name, None) for name in DEPLOYED),
        *((name, "") for name in DEPLOYED),
        ("DATABASE_URL", "postgresql://lethe:change-me@db/lethe"),
        ("REDIS_URL", "redis://:changeme@broker/0"),
        ("LETHE_IDENTITY_KEY", "change-me"),
        ("LETHE_SIGNING_KEY", "replace-this"),
        ("LETHE_SIGNING_KEY", base64.b64encode(bytes(32)).decode()),
        ("LETHE_LOG_KEY", "change-me"),
        ("LETHE_IDENTITY_KEY", base64.b64encode(b"too short").decode()),
    ],
)
def test_a_missing_or_placeholder_secret_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None
) -> None:
    deploy(monkeypatch, **{variable: value})
    with pytest.raises(ConfigurationError, match=variable) as refusal:
        load_settings().identity_keys()  # only the API asks for them
    assert not value or value not in str(refusal.value)


def test_only_the_api_needs_the_identity_key(monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(monkeypatch, LETHE_IDENTITY_KEY=None)
    assert load_settings().signing_key_bytes()


def test_a_command_is_not_run_before_the_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(monkeypatch, LETHE_SIGNING_KEY=None, LETHE_SIGNING_KEY_COMMAND="false")
    settings = load_settings()
    with pytest.raises(ConfigurationError, match="LETHE_SIGNING_KEY_COMMAND ended with status 1"):
        settings.signing_key_bytes()


def test_a_malformed_setting_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_LEASE_SECONDS", "soon")
    with pytest.raises(ConfigurationError, match="LETHE_LEASE_SECONDS") as refusal:
        load_settings()
    assert "soon" not in str(refusal.value)


def test_the_unedited_example_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / ".env.example"
    (tmp_path / ".env").write_text(example.read_text())
    with pytest.raises(ConfigurationError):
        load_settings()
