"""Workers by the dozen: a process that has everything imported and warm, and forks one for each line it reads.

    {"model_id": ..., "die_at": 7}  ->  {"killed": true, "exit_code": -9, "passed": ["before commit", ...]}

So a worker costs a tenth of a second, not the four that importing torch takes. One that shall not die is the process
itself, which warms up whatever the first batch of a process has to wait for. Run it with one OpenMP thread: a thread
pool would not survive the fork.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from dataclasses import dataclass
from typing import Any

from service.logs import configure_logging
from service.settings import load_settings
from tests.faults.boundaries import Boundaries
from worker.context import WorkerContext
from worker.forget import forget_pending


@dataclass(frozen=True)
class Smith:
    context: WorkerContext
    boundaries: Boundaries

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        model_id, die_at = uuid.UUID(asked["model_id"]), asked["die_at"]
        answer = self._live(model_id) if die_at is None else self._die(model_id, die_at)
        self.context.database.close()  # connections do not survive a fork
        return answer

    def _live(self, model_id: uuid.UUID) -> dict[str, Any]:
        passed: list[str] = []
        self.boundaries.begin(passed.append, None)
        forget_pending(self.context, model_id)
        return {"killed": False, "exit_code": 0, "passed": passed}

    def _die(self, model_id: uuid.UUID, die_at: int) -> dict[str, Any]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self.boundaries.begin(lambda name: os.write(writing, f"{name}\n".encode()), die_at)
            self._work(model_id)
        os.close(writing)
        with os.fdopen(reading) as told:
            passed = told.read().splitlines()
        _, status = os.waitpid(child, 0)
        return {"killed": os.WIFSIGNALED(status), "exit_code": os.waitstatus_to_exitcode(status), "passed": passed}

    def _work(self, model_id: uuid.UUID) -> None:
        """Never returns: what the parent does at its end is not the child's to do."""
        code = 1
        try:
            forget_pending(self.context, model_id)
            code = 0
        finally:
            os._exit(code)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the log goes where errors go; standard output is for the answers
    configure_logging("INFO")
    context = WorkerContext.open(load_settings())
    smith = Smith(context, Boundaries(context.database))
    for line in sys.stdin:
        answers.write(json.dumps(smith.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
