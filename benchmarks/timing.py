"""How much of a processor something took, beside what it gave."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Seconds of processor time: what else runs on the machine would count towards the time on a clock."""
    started = time.process_time()
    result = action()
    return time.process_time() - started, result
