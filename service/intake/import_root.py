"""Reader of a registration's files. It reads only below the import root."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile

from service.store.datasets.tensor_files import Content, map_file
from service.store.errors import InvalidRegistration

CHUNK = 1 << 20


def read_parts(root: Path, location: Mapping[str, str], limit: int) -> dict[str, Content]:
    """Return the files at these locations, at most `limit` bytes in total. InvalidRegistration repeats no path."""
    parts: dict[str, Content] = {}
    for name, relative in location.items():
        field = f"location.{name}"
        remaining = limit - sum(map(len, parts.values()))
        try:
            parts[name] = _read(root, PurePosixPath(relative), remaining)
        except (OSError, ValueError):
            raise InvalidRegistration(
                field, "no readable file at this path under the import root (symbolic links are not followed)"
            ) from None
        if len(parts[name]) > remaining:
            raise InvalidRegistration(field, f"the files are larger than the {limit} bytes allowed")
    return parts


def _read(root: Path, relative: PurePosixPath, limit: int) -> Content:
    """Return a copy of the file, with at most one byte more than the limit, so that the checked bytes are stored.

    Folders are opened one by one, each relative to the one before and never through a link. So no step can leave the
    root, whatever is renamed in the meantime.
    """
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise ValueError("outside the root")
    with ExitStack() as opened:

        def enter(name: str | Path, flags: int, folder: int | None) -> int:
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=folder)
            opened.callback(os.close, handle)
            return handle

        folder = enter(root, os.O_DIRECTORY, None)
        for name in relative.parts[:-1]:
            folder = enter(name, os.O_DIRECTORY | os.O_NOFOLLOW, folder)
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        handle = enter(relative.name, os.O_NOFOLLOW | os.O_NONBLOCK, folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("not a file")
        with TemporaryFile() as copy:
            while limit >= copy.tell() and (chunk := os.read(handle, CHUNK)):
                copy.write(chunk[: limit + 1 - copy.tell()])
            return map_file(copy)
