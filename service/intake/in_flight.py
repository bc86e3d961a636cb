"""Idempotency keys whose first request is still being answered: the others wait for it a while, then are told to retry.

Two requests with one key in this process meet here. Those of two processes meet in the database (idempotency.py),
and nothing here outlives the process.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from service.store.deletions.idempotency import ANOTHER_BODY, STILL_IN_FLIGHT, KeyUse
from service.store.errors import IdempotencyMismatch, KeyInFlight, StoreError

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class First:
    use: KeyUse
    task: asyncio.Task[str]


class InFlight:
    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._running: dict[tuple[str, str], First] = {}

    async def answer(self, use: KeyUse, work: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """What `work` answers, or what the same request is being answered already. Raises KeyInFlight in the end."""
        deadline = asyncio.get_running_loop().time() + self._wait_seconds
        while True:
            first = self._running.get((use.caller, use.key))
            if first is not None:
                answer = await _answer_of(first, use, deadline)
                if answer is not None:
                    return answer
                continue
            try:
                return await self._run(use, work)
            except KeyInFlight:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def _run(self, use: KeyUse, work: Callable[[], Coroutine[Any, Any, str]]) -> str:
        task = asyncio.create_task(work())
        self._running[use.caller, use.key] = First(use, task)
        task.add_done_callback(lambda _: self._running.pop((use.caller, use.key)))
        # Others may wait for it, so it goes on even if the one who asked first has gone.
        return await asyncio.shield(task)


async def _answer_of(first: First, use: KeyUse, deadline: float) -> str | None:
    """None when it came to nothing: then the next one tries."""
    left = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait([first.task], timeout=max(left, 0.0))
    if not done:
        raise KeyInFlight(STILL_IN_FLIGHT)
    same = hmac.compare_digest(first.use.body_mac, use.body_mac)
    error = None if first.task.cancelled() else first.task.exception()
    if same and isinstance(error, StoreError) and not isinstance(error, KeyInFlight):
        raise error
    if error is not None or first.task.cancelled():
        return None
    if not same:
        raise IdempotencyMismatch(ANOTHER_BODY)
    return first.task.result()
