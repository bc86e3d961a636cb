"""Unix socket of the embedded broker, which only its owner can reach."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

SOCKET_NAME = "redis.sock"
LONGEST_SOCKET_PATH = 100
"""In bytes. The kernel allows 104 on macOS and 108 on Linux; a server may truncate a longer path silently."""


def broker_socket(data_dir: Path) -> Path:
    """Return the socket of the broker that serves this data folder.

    It is in the data folder if the path is short enough. Otherwise it is in a private folder below the system's
    temporary folder, named after the data folder and the user so that every process uses the same one.
    """
    home = data_dir.resolve()
    socket = home / SOCKET_NAME
    if not _fits(socket):
        socket = _short_folder(home) / SOCKET_NAME
    if not _fits(socket):
        raise OSError(
            f"{socket} is too long for a Unix socket: choose a shorter LETHE_DATA_DIR or TMPDIR, or set REDIS_URL."
        )
    return socket


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH


def _short_folder(home: Path) -> Path:
    user = os.geteuid()
    digest = hashlib.sha256(os.fsencode(home) + b"\0%d" % user).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"lethe-{digest}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Another user can guess the name and create the folder first, in order to control the broker.
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder that only you can access: remove it, or choose a shorter LETHE_DATA_DIR."
        )
    return folder
