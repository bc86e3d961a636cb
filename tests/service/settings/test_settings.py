from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from service.settings import ConfigurationError, load_settings, new_key, write_private_file

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


def test_a_private_file_is_never_overwritten(tmp_path: Path) -> None:
    write_private_file(tmp_path / "key", "one")
    with pytest.raises(FileExistsError):
        write_private_file(tmp_path / "key", "two")
    assert (tmp_path / "key").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


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


def test_identity_keys_are_listed_oldest_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [new_key() for _ in range(3)]
    decoded = [base64.b64decode(key) for key in keys]
    deploy(monkeypatch, LETHE_IDENTITY_KEY=", ".join(keys))
    assert load_settings().identity_keys() == decoded
    write_private_file(tmp_path / "the.key", ",".join(keys) + "\n")
    deploy(monkeypatch, LETHE_IDENTITY_KEY=None)
    monkeypatch.setenv("LETHE_IDENTITY_KEY_FILE", str(tmp_path / "the.key"))
    assert load_settings().identity_keys() == decoded
    deploy(monkeypatch, LETHE_IDENTITY_KEY=f"{keys[0]},")
    monkeypatch.delenv("LETHE_IDENTITY_KEY_FILE")
    with pytest.raises(ConfigurationError, match="LETHE_IDENTITY_KEY is not set"):
        load_settings().identity_keys()


@pytest.mark.parametrize("name", KEYS)
def test_a_key_comes_from_a_file_or_a_command_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    key, path = DEPLOYED[name], tmp_path / "the.key"
    write_private_file(path, key + "\n")
    for variable, value in ((f"{name}_FILE", str(path)), (f"{name}_COMMAND", f"cat '{path}'")):
        for deployed in (True, False):
            with monkeypatch.context() as environment:
                if deployed:
                    deploy(environment, **{name: None})
                environment.setenv(variable, value)
                settings = load_settings()
            source = settings.log_key_source if name == "LETHE_LOG_KEY" else settings.signing_key_source
            read = settings.log_key_bytes() if name == "LETHE_LOG_KEY" else settings.signing_key_bytes()
            assert (settings.embedded, source.variable) == (not deployed, variable)
            assert read == base64.b64decode(key)
    assert not Path(f".lethe/secrets/{name.removeprefix('LETHE_').lower()}.key").exists()


@pytest.mark.parametrize("second", KEY_SOURCES)
@pytest.mark.parametrize("deployed", [True, False])
def test_two_sources_of_a_key_are_refused(monkeypatch: pytest.MonkeyPatch, second: str, deployed: bool) -> None:
    if deployed:
        deploy(monkeypatch)
    first = second.rpartition("_")[0]
    monkeypatch.setenv(first, DEPLOYED[first])
    monkeypatch.setenv(second, "somewhere")
    with pytest.raises(ConfigurationError, match=f"{first} and {second} are set: keep the one"):
        load_settings()


def test_a_key_file_that_others_can_read_stops_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    path.write_text(DEPLOYED["LETHE_SIGNING_KEY"])
    path.chmod(0o644)
    deploy(monkeypatch, LETHE_SIGNING_KEY=None, LETHE_SIGNING_KEY_FILE=str(path))
    with pytest.raises(ConfigurationError, match=f"chmod 600 {path}") as refusal:
        load_settings()
    assert DEPLOYED["LETHE_SIGNING_KEY"] not in str(refusal.value)


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


def test_the_unedited_example_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / ".env.example"
    (tmp_path / ".env").write_text(example.read_text())
    with pytest.raises(ConfigurationError):
        load_settings()
