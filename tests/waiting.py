from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], description: str, timeout: float = 20.0) -> T:
    """Poll a condition until it is true, and return its value. Tests never sleep for a fixed time."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {description}")
        time.sleep(0.01)
    return value
