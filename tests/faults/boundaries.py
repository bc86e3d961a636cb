"""Boundaries at which the death of a process matters: commits, and the steps of writing or removing files.

Used only in the process of fork_server.py and its children.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import worker.forget
from service.store.artifacts.bucket import ArtifactBucket
from service.store.batches import publication
from service.store.database import Database

FUNCTIONS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("fsync", "link", "remove", "rename", "replace", "unlink")),
    (ArtifactBucket, "put"),
    (ArtifactBucket, "destroy"),
    (worker.forget, "load_claimed"),
    (publication, "schedule_erasure"),
)


class Boundaries:
    """Reports each boundary that is reached, and kills the process at one of them."""

    def __init__(self, database: Database) -> None:
        # On the dialect: SQLAlchemy has an event before the commit, but none after it.
        dialect: Any = database.engine.dialect
        dialect.do_commit = self._around("commit", dialect.do_commit)
        for owner, name in FUNCTIONS:
            setattr(owner, name, self._around(name, getattr(owner, name)))
        self._halve_writes()
        self.begin(print, None)

    def begin(self, report: Callable[[str], object], die_at: int | None) -> None:
        """Restart the count."""
        self._report, self._die_at, self._count = report, die_at, 0

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            self._reach(f"before {name}")
            result = function(*args, **options)
            self._reach(f"after {name}")
            return result

        return wrapper

    def _halve_writes(self) -> None:
        """Make each file that is written whole pass a boundary when half of it is on disk."""
        open_path = Path.open

        def open_halving(path: Path, mode: str = "r", **options: Any) -> IO[Any]:
            file = open_path(path, mode, **options)
            return file if mode != "wb" else _HalvingFile(file, self._reach)  # type: ignore[return-value]

        Path.open = open_halving  # type: ignore[assignment,method-assign]

    def _reach(self, name: str) -> None:
        self._report(name)
        if self._count == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1


class _HalvingFile:
    """File that reaches a boundary after the first half of what is written."""

    def __init__(self, file: IO[Any], reach: Callable[[str], object]) -> None:
        self._file, self._reach = file, reach

    def __enter__(self) -> _HalvingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        content = b"".join(pieces)
        middle = len(content) // 2
        self._file.write(content[:middle])
        self._file.flush()
        self._reach("half of write")
        self._file.write(content[middle:])
