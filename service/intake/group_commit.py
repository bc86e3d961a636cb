"""Group commit: what arrives while a transaction is under way goes into the next one, all of it together.

A lone request does not wait for company. Under load a transaction carries many, so that its statements and its flush
to the disk are shared; nobody is answered before the commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
LARGEST_GROUP = 64
"""So that nobody waits long for the others in the same transaction."""


class GroupCommit(Generic[Item, Result]):
    """`commit` runs in a thread of its own and returns, for each item in order, its result or what to raise for it."""

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Result | Exception]]) -> None:
        self._commit = commit
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self._drain: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Returns when the item's transaction is committed."""
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, outcome))
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._run())
        return await outcome

    def close(self) -> None:
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST_GROUP))]
            results: Sequence[Result | Exception]
            try:
                results = await loop.run_in_executor(self._thread, self._commit, [item for item, _ in group])
            except Exception as error:  # whatever it is, it belongs to those who wait
                results = [error] * len(group)
            for (_, outcome), result in zip(group, results, strict=True):
                if outcome.done():  # whoever asked has gone
                    continue
                if isinstance(result, Exception):
                    outcome.set_exception(result)
                else:
                    outcome.set_result(result)
