"""Workers as real processes whose code a test can patch: to die, to wait, or to use a skewed clock."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid

from service.settings import Settings
from tests.faults.fork_client import environment

SCRIPT = """
    import os, signal, sys, uuid
    from datetime import UTC, datetime, timedelta
    import service.store.tables

    skew = timedelta(seconds={skew_seconds})
    service.store.tables.now = lambda: datetime.now(UTC) + skew  # before other modules import it

    import service.store.batches.publication, worker.forget, worker.lease
    from service.settings import load_settings
    from worker.context import WorkerContext

    def die(*args, **options):
        os.kill(os.getpid(), signal.SIGKILL)

    def report_and_wait(function):
        def waiting(*args, **options):
            result = function(*args, **options)
            print("waiting", flush=True)
            sys.stdin.readline()
            return result
        return waiting

    {patch}
    worker.forget.forget_pending(WorkerContext.open(load_settings()), uuid.UUID("{model_id}"))
"""


def start_forgetting(
    settings: Settings, model_id: uuid.UUID, patch: str, skew_seconds: float = 0.0
) -> subprocess.Popen[str]:
    """Process one batch in another process."""
    env = {
        **environment(settings),
        "LETHE_BATCH_WINDOW_SECONDS": "0",
        "PATH": "/usr/bin:/bin",
    }
    script = textwrap.dedent(SCRIPT).format(patch=patch, model_id=model_id, skew_seconds=skew_seconds)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", script], env=env, text=True, **pipes)
