from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from service.http.timed_checks import Check, TimedChecks


def counting(check: Check) -> tuple[Check, Callable[[], int]]:
    calls: list[None] = []

    def counted() -> str | None:
        calls.append(None)
        return check()

    return counted, lambda: len(calls)


def test_only_problems_are_returned() -> None:
    checks = TimedChecks({"good": lambda: None, "bad": lambda: "broken; repair it"}, 5.0, 0.0)
    assert asyncio.run(checks.find_problems()) == {"bad": "broken; repair it"}
    assert list(checks.names) == ["good", "bad"]


def test_checks_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=5)

    def meet() -> None:
        both.wait()

    checks = TimedChecks({"first": meet, "second": meet}, 5.0, 0.0)
    assert asyncio.run(checks.find_problems()) == {}


def test_a_hung_check_is_reported_and_not_started_again() -> None:
    released = threading.Event()
    hung, count = counting(lambda: None if released.wait(30) else "never")
    checks = TimedChecks({"database": hung}, 0.05, 0.0)
    started = time.monotonic()
    for _ in range(3):
        assert asyncio.run(checks.find_problems()) == {"database": "database: no answer within 0 seconds"}
    assert time.monotonic() - started < 5
    assert count() == 1
    released.set()
    while asyncio.run(checks.find_problems()):
        assert time.monotonic() - started < 10
    asyncio.run(checks.find_problems())
    assert count() == 2


def test_results_are_cached() -> None:
    check, count = counting(lambda: "broken")
    checks = TimedChecks({"a": check}, 5.0, 60.0)
    assert [asyncio.run(checks.find_problems()) for _ in range(3)] == [{"a": "broken"}] * 3
    assert count() == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_check_that_raises_is_a_problem() -> None:
    def crash() -> None:
        raise RuntimeError("person-1")

    problems = asyncio.run(TimedChecks({"a": crash}, 5.0, 0.0).find_problems())
    for thread in threading.enumerate():
        if thread.name == "check-a":
            thread.join()  # otherwise its exception may be raised during the next test
    assert problems == {"a": "unexpected RuntimeError; see the log"}
