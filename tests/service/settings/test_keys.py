from __future__ import annotations

import base64
from pathlib import Path

import pytest

from service.settings import (
    ConfigurationError,
    load_settings,
    make_private_folder,
    new_key,
    write_private_file,
)
from tests.service.settings.conftest import DEPLOYED, KEY_SOURCES, KEYS, deploy


def test_a_private_file_is_never_overwritten(tmp_path: Path) -> None:
    write_private_file(tmp_path / "key", "one")
    with pytest.raises(FileExistsError):
        write_private_file(tmp_path / "key", "two")
    assert (tmp_path / "key").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_private_folder_has_private_parents(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]


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
