"""Where a process can die so that it matters: before and after each commit, and around each change of a file's name.

Only in the process of forge.py and its children.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from service.store.database import Database

NAMING = ("link", "remove", "rename", "replace", "unlink")


class Boundaries:
    """Tells each boundary that is passed, and dies at one of them."""

    def __init__(self, database: Database) -> None:
        # On the dialect, because SQLAlchemy's own event comes before the commit and none comes after it.
        dialect: Any = database.engine.dialect
        dialect.do_commit = self._around("commit", dialect.do_commit)
        for name in NAMING:
            setattr(os, name, self._around(name, getattr(os, name)))
        self.begin(print, None)

    def begin(self, tell: Callable[[str], object], die_at: int | None) -> None:
        """Count from here on."""
        self._tell, self._die_at, self._passed = tell, die_at, 0

    def _around(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self._pass(f"before {name}")
            done = do(*args, **options)
            self._pass(f"after {name}")
            return done

        return watched

    def _pass(self, name: str) -> None:
        self._tell(name)
        if self._passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._passed += 1
