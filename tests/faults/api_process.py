"""The API as a process of its own, for fault tests that run their own workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.settings import Settings
from tests.end_to_end.conftest import free_port, is_ready
from tests.faults.fork_client import environment
from tests.waiting import wait_until


@contextmanager
def serve_api(settings: Settings, log_file: Path) -> Iterator[int]:
    """Serve without rate limits, and yield the port."""
    port = free_port()
    env = {**os.environ, **environment(settings), "LETHE_RATE_PER_SECOND": "1000000", "LETHE_RATE_BURST": "1000000"}
    command = [sys.executable, "-m", "lethe", "api", "--port", str(port)]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"), "the API is ready", timeout=60)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)
