"""Group commit: items that arrive during a transaction share the next one.

A lone item does not wait for company. Under load one transaction carries many items, which share its statements and
its flush to disk. Nobody is answered before the commit. Callers take turns: each has a lane, and a group takes one item
of each lane after the other. A heavy item, such as a slice of a bulk request, has a transaction of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_GROUP = 64
"""Limits how long an item waits for the others of its transaction."""


class GroupCommit(Generic[Item, Result]):
    """Lanes in front of `commit`, which runs in one thread.

    For each item, in order, `commit` returns its result or the exception to raise for it.
    """

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Result | Exception]]) -> None:
        self._commit = commit
        self._lanes: dict[str, deque[tuple[Item, int, asyncio.Future[Result]]]] = {}
        """Waiting items with their weights. The first lane is the next to be served."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self._drain: asyncio.Task[None] | None = None

    async def submit(self, item: Item, lane: str = "", weight: int = 1) -> Result:
        """Return once the item's transaction is committed."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._lanes.setdefault(lane, deque()).append((item, weight, future))
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._run())
        return await future

    def close(self) -> None:
        self._thread.shutdown()

    def _next_group(self) -> Sequence[tuple[Item, asyncio.Future[Result]]]:
        group: list[tuple[Item, asyncio.Future[Result]]] = []
        room = MAX_GROUP
        while self._lanes and room > 0:
            lane, queue = next(iter(self._lanes.items()))
            item, weight, future = queue[0]
            if group and weight > room:
                break
            queue.popleft()
            del self._lanes[lane]
            if queue:
                self._lanes[lane] = queue  # behind the others
            group.append((item, future))
            room -= weight
        return group

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while group := self._next_group():
            results: Sequence[Result | Exception]
            try:
                results = await loop.run_in_executor(self._thread, self._commit, [item for item, _ in group])
            except Exception as error:  # every waiting caller gets it
                results = [error] * len(group)
            for (_, future), result in zip(group, results, strict=True):
                if future.done():  # the caller has disconnected
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
