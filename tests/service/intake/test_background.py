from __future__ import annotations

import asyncio
import threading

import pytest

from service.intake.background import Background


def test_all_work_runs_in_one_other_thread() -> None:
    background = Background()

    async def scenario() -> set[int]:
        return set(await asyncio.gather(*(background.run(threading.get_ident) for _ in range(20))))

    threads = asyncio.run(scenario())
    background.close()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_is_raised_for_its_caller() -> None:
    background = Background()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(background.run(lambda: 1 // 0))
    background.close()
