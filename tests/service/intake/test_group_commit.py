from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from service.intake.group_commit import MAX_GROUP, GroupCommit


class Recorder:
    """A commit that waits for `gate` and doubles its items. Odd items are refused."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.gate.wait(10)
        self.groups.append(list(items))
        if 0 in items:
            raise RuntimeError("no commit")
        return [ValueError(item) if item % 2 else 2 * item for item in items]


async def submit_all(recorder: Recorder, items: Sequence[int]) -> list[int | BaseException]:
    """Submit the first item, and the others while its transaction is open."""
    group: GroupCommit[int, int] = GroupCommit(recorder.commit)
    recorder.gate.clear()
    tasks = [asyncio.create_task(group.submit(item)) for item in items[:1]]
    await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(group.submit(item)) for item in items[1:]]
    await asyncio.sleep(0.01)
    recorder.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    group.close()
    return results


def test_items_that_arrive_during_a_transaction_share_the_next() -> None:
    recorder = Recorder()
    assert asyncio.run(submit_all(recorder, [2, 4, 6, 8])) == [4, 8, 12, 16]
    assert recorder.groups == [[2], [4, 6, 8]]


def test_a_group_has_a_limit() -> None:
    recorder = Recorder()
    items = [2 * number for number in range(1, MAX_GROUP + 3)]
    assert asyncio.run(submit_all(recorder, items)) == [2 * item for item in items]
    assert [len(group) for group in recorder.groups] == [1, MAX_GROUP, 1]


def test_a_refused_item_does_not_affect_the_others() -> None:
    first, refused, last = asyncio.run(submit_all(Recorder(), [2, 3, 4]))
    assert (first, last) == (4, 8)
    assert isinstance(refused, ValueError)


def test_a_failed_transaction_fails_for_all_its_items_and_for_no_other() -> None:
    first, *failed = asyncio.run(submit_all(Recorder(), [2, 0, 4]))
    assert first == 4
    assert [str(error) for error in failed] == ["no commit", "no commit"]


def test_a_caller_that_disconnects_leaves_the_others_alone() -> None:
    recorder = Recorder()

    async def scenario() -> int:
        group: GroupCommit[int, int] = GroupCommit(recorder.commit)
        recorder.gate.clear()
        leaving, staying = asyncio.create_task(group.submit(2)), asyncio.create_task(group.submit(4))
        await asyncio.sleep(0.01)
        leaving.cancel()
        recorder.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        result = await staying
        group.close()
        return result

    assert asyncio.run(scenario()) == 8


def test_callers_take_turns_and_heavy_items_go_alone() -> None:
    recorder = Recorder()

    async def scenario() -> None:
        group: GroupCommit[int, int] = GroupCommit(recorder.commit)
        recorder.gate.clear()
        tasks = [asyncio.create_task(group.submit(2, "first"))]
        await asyncio.sleep(0.01)
        for item, lane, weight in (
            (4, "first", MAX_GROUP),
            (6, "first", MAX_GROUP),
            (8, "first", 1),
            (10, "second", 1),
            (12, "second", 1),
            (14, "third", MAX_GROUP),
        ):
            tasks.append(asyncio.create_task(group.submit(item, lane, weight)))
        await asyncio.sleep(0.01)
        recorder.gate.set()
        await asyncio.gather(*tasks)
        group.close()

    asyncio.run(scenario())
    assert recorder.groups == [[2], [4], [10], [14], [6], [12, 8]]
