"""Boundaries at which the death of a process matters: around each commit and each renaming or removal of a file.

Used only in the process of fork_server.py and its children.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from service.store.database import Database

FILE_OPERATIONS = ("link", "remove", "rename", "replace", "unlink")


class Boundaries:
    """Reports each boundary that is reached, and kills the process at one of them."""

    def __init__(self, database: Database) -> None:
        # On the dialect: SQLAlchemy has an event before the commit, but none after it.
        dialect: Any = database.engine.dialect
        dialect.do_commit = self._around("commit", dialect.do_commit)
        for name in FILE_OPERATIONS:
            setattr(os, name, self._around(name, getattr(os, name)))
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

    def _reach(self, name: str) -> None:
        self._report(name)
        if self._count == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1
