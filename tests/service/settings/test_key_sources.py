from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.settings import key_sources
from service.settings.key_sources import KeySource, KeyUnavailable, read_key_file, replace_key_file, run_key_command

FILE, COMMAND = "LETHE_SIGNING_KEY_FILE", "LETHE_SIGNING_KEY_COMMAND"
SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I="


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    run_key_command.cache_clear()


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask that leaves new files open to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def key_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "signing.key"
    path.write_text(SECRET + "\n")
    path.chmod(mode)
    return path


def python(script: str) -> str:
    return shlex.join([sys.executable, "-c", script])


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_key_file_is_read(tmp_path: Path, mode: int) -> None:
    assert read_key_file(key_file(tmp_path, mode), FILE) == SECRET


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_can_access_is_refused_with_a_remedy(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, mode)
    with pytest.raises(KeyUnavailable, match=f"LETHE_SIGNING_KEY_FILE .*`chmod 600 {path}`") as refusal:
        read_key_file(path, FILE)
    assert SECRET not in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailable, match=r"LETHE_SIGNING_KEY_FILE .*No such file.*nowhere"):
        read_key_file(tmp_path / "nowhere", FILE)


@pytest.mark.usefixtures("open_umask")
def test_a_replaced_file_is_private_and_leaves_no_draft(tmp_path: Path) -> None:
    path = key_file(tmp_path, 0o644)
    replace_key_file(path, "another")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path, FILE) == "another"
    assert list(tmp_path.iterdir()) == [path]


def test_replacing_follows_a_symbolic_link(tmp_path: Path) -> None:
    path, link = key_file(tmp_path), tmp_path / "link"
    link.symlink_to(path)
    replace_key_file(link, "another")
    assert link.is_symlink()
    assert path.read_text() == "another"


def test_a_failed_replacement_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    path.mkdir()
    with pytest.raises(KeyUnavailable, match="cannot be written") as refusal:
        replace_key_file(path, SECRET)
    assert SECRET not in str(refusal.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_command_is_split_like_in_a_shell_and_run_once_without_one(tmp_path: Path) -> None:
    noted = tmp_path / "runs"
    script = f"open({str(noted)!r}, 'a').write('x'); print('$HOME; {SECRET}')"
    assert [run_key_command(python(script), COMMAND) for _ in range(2)] == [f"$HOME; {SECRET}"] * 2
    assert noted.read_text() == "x"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (python(f"import sys; print('{SECRET}'); sys.exit('{SECRET}')"), "ended with status 1"),
        (f"/no/such/vault --token {SECRET}", "cannot be run"),
        (f"vault 'read {SECRET}", "cannot be run"),
    ],
)
def test_a_failed_command_is_reported_without_its_output_or_arguments(
    line: str, problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyUnavailable, match=f"LETHE_SIGNING_KEY_COMMAND {problem}: run it by hand") as refusal:
        run_key_command(line, COMMAND)
    assert SECRET not in str(refusal.value)
    assert "".join(capfd.readouterr()) == ""


def test_a_command_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sources, "COMMAND_SECONDS", 0.2)
    with pytest.raises(KeyUnavailable, match="took longer than"):
        run_key_command(python(f"import time; print('{SECRET}', flush=True); time.sleep(60)"), COMMAND)


def test_a_source_reads_the_key_from_the_variable_that_is_set(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    command = SecretStr(python(f"print('{SECRET}')"))
    sources = {
        "LETHE_LOG_KEY": KeySource("LETHE_LOG_KEY", SecretStr(SECRET), None, None),
        "LETHE_LOG_KEY_FILE": KeySource("LETHE_LOG_KEY", None, path, None),
        "LETHE_LOG_KEY_COMMAND": KeySource("LETHE_LOG_KEY", None, None, command),
    }
    for variable, source in sources.items():
        text = source.read()
        assert text is not None
        assert (source.variable, source.variables, text.get_secret_value()) == (variable, [variable], SECRET)
        assert SECRET not in repr(source)
    unset = KeySource("LETHE_LOG_KEY", None, None, None)
    assert (unset.variable, unset.variables, unset.read()) == ("LETHE_LOG_KEY", [], None)
    assert len(KeySource("LETHE_LOG_KEY", SecretStr(SECRET), path, None).variables) == 2
