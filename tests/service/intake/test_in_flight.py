from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from service.intake.in_flight import InFlight
from service.store.deletions.idempotency import BULK, DELETION, KeyUse
from service.store.errors import IdempotencyMismatch, KeyInFlight, NotFound

USE = KeyUse("acme", "key", DELETION, b"body", bytes)


@dataclass
class Work:
    """Work that takes a while, or fails with `errors` first."""

    seconds: float = 0.02
    errors: list[Exception] = field(default_factory=list)
    runs: int = 0

    async def run(self) -> str:
        self.runs += 1
        await asyncio.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop(0)
        return f"answer {self.runs}"


def answer_twice(work: Work, second: KeyUse = USE, wait_seconds: float = 5.0) -> list[str | BaseException]:
    async def scenario() -> list[str | BaseException]:
        in_flight = InFlight(wait_seconds)
        answers = (in_flight.answer(use, work.run) for use in (USE, second))
        return await asyncio.gather(*answers, return_exceptions=True)

    return asyncio.run(scenario())


def test_the_second_request_gets_the_answer_of_the_first() -> None:
    work = Work()
    assert answer_twice(work) == ["answer 1", "answer 1"]
    assert work.runs == 1


@pytest.mark.parametrize("other", [replace(USE, key="other key"), replace(USE, caller="umbrella")])
def test_other_keys_and_callers_are_independent(other: KeyUse) -> None:
    work = Work()
    answer_twice(work, other)
    assert work.runs == 2


@pytest.mark.parametrize("other", [replace(USE, content=b"another body"), replace(USE, kind=BULK)])
def test_another_body_or_kind_under_the_same_key_is_refused(other: KeyUse) -> None:
    answer, error = answer_twice(Work(), other)
    assert answer == "answer 1"
    assert isinstance(error, IdempotencyMismatch)


def test_waiting_has_an_end() -> None:
    answer, error = answer_twice(Work(seconds=0.2), wait_seconds=0.01)
    assert answer == "answer 1"
    assert isinstance(error, KeyInFlight)


def test_a_refusal_is_shared_too() -> None:
    work = Work(errors=[NotFound("no model")])
    assert [type(error) for error in answer_twice(work)] == [NotFound, NotFound]
    assert work.runs == 1


def test_after_a_crash_the_next_request_tries() -> None:
    work = Work(errors=[RuntimeError("crash")])
    crash, answer = answer_twice(work)
    assert isinstance(crash, RuntimeError)
    assert answer == "answer 2"


def test_a_key_locked_by_another_process_is_tried_again() -> None:
    work = Work(errors=[KeyInFlight("elsewhere")])
    assert asyncio.run(InFlight(5.0).answer(USE, work.run)) == "answer 2"
