"""A worker that claims one batch and fails on the way, in a process of its own.

    python -m tests.faults.faulty_worker POINT FAULT FILE

It waits for FILE, which names the model, makes the model's deletions due, and claims them before any other worker can.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import update

import worker.forget
from service.logs import configure_logging
from service.settings import load_settings
from service.store.clock import current_time
from service.store.tables import DeletionTarget
from worker.context import WorkerContext

STARTED = "FAULT"
"""Line that it prints when the fault begins."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _wait() -> None:
    sys.stdin.readline()


FAULTS: dict[str, Callable[[], None]] = {"kill": _kill, "stop": _stop, "wait": _wait}


def _fail_after(function: Callable[..., Any], fault: Callable[[], None]) -> Callable[..., Any]:
    def failing(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        print(STARTED, flush=True)  # noqa: T201
        fault()
        return result

    return failing


def main(point: str, fault: str, file: Path) -> None:
    configure_logging("INFO")
    context = WorkerContext.open(load_settings())
    setattr(worker.forget, point, _fail_after(getattr(worker.forget, point), FAULTS[fault]))
    while not file.exists():
        time.sleep(0.02)
    model_id = uuid.UUID(file.read_text())
    file.unlink()  # a restarted process must not fail again
    with context.database.writing() as session:
        due = current_time(session) - timedelta(hours=1)
        session.execute(update(DeletionTarget).where(DeletionTarget.model_id == model_id).values(not_before=due))
    worker.forget.forget_pending(context, model_id)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
