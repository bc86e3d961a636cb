"""Processor time of a call."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of processor time and the result. Wall-clock time would count other programs too."""
    started = time.process_time()
    result = action()
    return time.process_time() - started, result
