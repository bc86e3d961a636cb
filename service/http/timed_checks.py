"""Checks that may hang, each with a time limit and never two of the same at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

Check = Callable[[], str | None]
"""Returns what is wrong and what to do, or None."""


class TimedChecks:
    """Runs checks concurrently, each in a daemon thread. A hung one is waited for again, not started again.

    So a hung database occupies one thread, however often it is asked for, and does not hold up the end of the process.
    """

    def __init__(self, checks: Mapping[str, Check], timeout_seconds: float, cache_seconds: float) -> None:
        self._checks = checks
        self._timeout_seconds = timeout_seconds
        self._cache_seconds = cache_seconds
        self._running: dict[str, Future[str | None]] = {}
        self._problems: Mapping[str, str] = {}
        self._expires_at = 0.0

    @property
    def names(self) -> Collection[str]:
        return self._checks.keys()

    async def find_problems(self) -> Mapping[str, str]:
        """Return what is wrong, by the name of the check. Call it from one event loop."""
        if time.monotonic() >= self._expires_at:
            self._problems = await self._run_all()
            self._expires_at = time.monotonic() + self._cache_seconds
        return self._problems

    async def _run_all(self) -> Mapping[str, str]:
        futures = {name: self._start(name) for name in self._checks}
        await asyncio.wait(map(asyncio.wrap_future, futures.values()), timeout=self._timeout_seconds)
        results = {name: self._result(name, future) for name, future in futures.items()}
        return {name: problem for name, problem in results.items() if problem is not None}

    def _start(self, name: str) -> Future[str | None]:
        if name not in self._running:
            future = self._running[name] = Future()
            threading.Thread(target=_run, args=(self._checks[name], future), name=f"check-{name}", daemon=True).start()
        return self._running[name]

    def _result(self, name: str, future: Future[str | None]) -> str | None:
        if not future.done():
            return f"{name}: no answer within {self._timeout_seconds:.0f} seconds"
        self._running.pop(name, None)
        return future.result()


def _run(check: Check, future: Future[str | None]) -> None:
    try:
        future.set_result(check())
    except Exception as error:
        future.set_result(f"unexpected {type(error).__name__}; see the log")
        raise
