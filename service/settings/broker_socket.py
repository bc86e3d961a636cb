"""Where the embedded broker listens: a Unix socket only its owner can reach."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

SOCKET_NAME = "redis.sock"
LONGEST_SOCKET_PATH = 100
"""Bytes. The kernel's field holds 104 on macOS and 108 on Linux; a server may cut a longer path silently."""


def broker_socket(data_dir: Path) -> Path:
    """The socket of the broker that serves this data folder.

    It lies in the data folder when the path fits, else in a private folder of the system's temporary folder whose
    name is derived from the data folder and the user, so that every process finds the same one.
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
    # Anyone can guess the name and make the folder first, in order to own the broker we then talk to.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a folder that only you can enter: remove it, or choose a shorter LETHE_DATA_DIR."
        )
    return folder
