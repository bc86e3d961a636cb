"""Idempotency keys whose first request is still being processed. Others wait for it briefly, then get 409.

Requests with the same key in one process meet in this module; those of two processes meet in the database
(store/deletions/idempotency.py). Nothing here outlives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from service.store.deletions.idempotency import ANOTHER_BODY, STILL_IN_FLIGHT, KeyUse
from service.store.errors import IdempotencyMismatch, KeyInFlight, StoreError

POLL_SECONDS = 0.05
Work = Callable[[], Coroutine[Any, Any, str]]


@dataclass(frozen=True)
class RunningRequest:
    use: KeyUse
    task: asyncio.Task[str]


class InFlight:
    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._running: dict[tuple[str, str], RunningRequest] = {}

    async def answer(self, use: KeyUse, work: Work) -> str:
        """Return the answer of `work`, or of the same request if it is already running.

        Raises KeyInFlight if that one does not finish in time.
        """
        deadline = asyncio.get_running_loop().time() + self._wait_seconds
        while True:
            first = self._running.get((use.caller, use.key))
            if first is not None:
                answer = await _wait_for_answer(first, use, deadline)
                if answer is not None:
                    return answer
                continue
            try:
                return await self._run(use, work)
            except KeyInFlight:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def _run(self, use: KeyUse, work: Work) -> str:
        task = asyncio.create_task(work())
        self._running[use.caller, use.key] = RunningRequest(use, task)
        task.add_done_callback(lambda _: self._running.pop((use.caller, use.key)))
        # Others may wait for it, so it continues even if its own caller disconnects.
        return await asyncio.shield(task)


async def _wait_for_answer(first: RunningRequest, use: KeyUse, deadline: float) -> str | None:
    """Return the first request's answer. None if it failed: then the next request tries."""
    remaining = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait([first.task], timeout=max(remaining, 0.0))
    if not done:
        raise KeyInFlight(STILL_IN_FLIGHT)
    is_same = first.use == use
    error = None if first.task.cancelled() else first.task.exception()
    if is_same and isinstance(error, StoreError) and not isinstance(error, KeyInFlight):
        raise error
    if error is not None or first.task.cancelled():
        return None
    if not is_same:
        raise IdempotencyMismatch(ANOTHER_BODY)
    return first.task.result()
