"""A process with everything imported and warm that forks a worker for each line it reads.

    {"model_id": ..., "die_at": 7}  ->  {"killed": true, "exit_code": -9, "boundaries": ["before commit", ...]}

So a worker takes a tenth of a second, not the four seconds of importing torch. A worker that is not to die runs in the
process itself, which also warms it up. Run it with one OpenMP thread: a thread pool does not survive a fork.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from dataclasses import dataclass, replace
from typing import Any

from service.logs import configure_logging
from service.settings import load_settings
from service.store.artifacts.location import open_artifacts
from tests.faults.boundaries import Boundaries
from worker.context import WorkerContext
from worker.forget import forget_pending


@dataclass(frozen=True)
class ForkServer:
    context: WorkerContext
    boundaries: Boundaries

    def run_worker(self, request: dict[str, Any]) -> dict[str, Any]:
        model_id, die_at = uuid.UUID(request["model_id"]), request["die_at"]
        report = self._run_here(model_id) if die_at is None else self._run_fork(model_id, die_at)
        self.context.database.close()  # connections do not survive a fork
        return report

    def _run_here(self, model_id: uuid.UUID) -> dict[str, Any]:
        boundaries: list[str] = []
        self.boundaries.begin(boundaries.append, None)
        self._forget(model_id)
        return {"killed": False, "exit_code": 0, "boundaries": boundaries}

    def _run_fork(self, model_id: uuid.UUID, die_at: int) -> dict[str, Any]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self.boundaries.begin(lambda name: os.write(writing, f"{name}\n".encode()), die_at)
            self._work(model_id)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            boundaries = pipe.read().splitlines()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return {"killed": os.WIFSIGNALED(status), "exit_code": code, "boundaries": boundaries}

    def _work(self, model_id: uuid.UUID) -> None:
        """Never return: the child must not run the parent's exit handlers."""
        code = 1
        try:
            self._forget(model_id)
            code = 0
        finally:
            os._exit(code)

    def _forget(self, model_id: uuid.UUID) -> None:
        # Opened anew: the thread that talks to a bucket does not survive a fork.
        forget_pending(replace(self.context, artifacts=open_artifacts(self.context.settings)), model_id)


def main() -> None:
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # logs go to standard error; standard output is for the reports
    configure_logging("INFO")
    context = WorkerContext.open(load_settings())
    server = ForkServer(context, Boundaries(context.database))
    for line in sys.stdin:
        reports.write(json.dumps(server.run_worker(json.loads(line))) + "\n")
        reports.flush()


if __name__ == "__main__":
    main()
