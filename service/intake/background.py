"""One thread for work that would occupy the interpreter for long: parsing and hashing of large bodies.

One, because each busy thread delays the event loop by its own time slice. Large work is submitted in parts, so that
several requests take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background")

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        self._thread.shutdown()
