from __future__ import annotations

import time

from benchmarks.timing import timed


def test_processor_time_counts_work_and_not_waiting() -> None:
    idle_seconds, result = timed(lambda: time.sleep(0.2) or "slept")
    busy_seconds, _ = timed(lambda: sum(range(3_000_000)))
    assert result == "slept"
    assert 0 <= idle_seconds < 0.1
    assert busy_seconds > idle_seconds
