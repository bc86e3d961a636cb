from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings.broker_socket import LONGEST_SOCKET_PATH, broker_socket


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short path, used as the system's by the code under test."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="lethe-test-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def long_folder(parent: Path, name: str = "x") -> Path:
    folder = parent / (name * LONGEST_SOCKET_PATH)
    folder.mkdir()
    return folder


def test_a_short_data_folder_contains_its_socket(short_tmp: Path) -> None:
    assert broker_socket(short_tmp) == short_tmp.resolve() / "redis.sock"


def test_a_long_data_folder_has_a_private_socket_folder_that_stays_the_same(short_tmp: Path) -> None:
    data_dir = long_folder(short_tmp)
    socket = broker_socket(data_dir)
    assert socket.parent.parent == short_tmp
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH
    assert broker_socket(data_dir) == socket != broker_socket(long_folder(short_tmp, "y"))


def test_a_socket_folder_that_others_can_enter_is_refused(short_tmp: Path) -> None:
    data_dir = long_folder(short_tmp)
    folder = broker_socket(data_dir).parent
    folder.chmod(0o750)
    with pytest.raises(PermissionError, match="only you can access"):
        broker_socket(data_dir)
    folder.rmdir()
    folder.symlink_to(short_tmp)
    with pytest.raises(PermissionError, match="only you can access"):
        broker_socket(data_dir)


def test_a_path_that_is_too_long_everywhere_is_an_error(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = long_folder(short_tmp)
    monkeypatch.setattr(tempfile, "tempdir", str(long_folder(short_tmp, "y")))
    with pytest.raises(OSError, match=r"too long for a Unix socket.*LETHE_DATA_DIR"):
        broker_socket(data_dir)
