"""Client of fork_server.py, for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.settings import Settings


@dataclass(frozen=True)
class WorkerExit:
    """How a worker exited, and the boundaries that it reached."""

    killed: bool
    exit_code: int
    boundaries: Sequence[str]


@dataclass(frozen=True)
class ForkClient:
    process: subprocess.Popen[str]

    def run_worker(self, model_id: uuid.UUID, die_at: int | None = None) -> WorkerExit:
        """Run a worker on the pending deletions of a model; with `die_at`, kill it at that boundary."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"model_id": str(model_id), "die_at": die_at}) + "\n")
        self.process.stdin.flush()
        report = self.process.stdout.readline()
        assert report, "the fork server has exited; see its log"
        return WorkerExit(**json.loads(report))


@contextmanager
def run_fork_server(settings: Settings, log_file: Path) -> Iterator[ForkClient]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            env={**os.environ, **environment(settings), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        yield ForkClient(process)
        assert process.stdin
        process.stdin.close()


def environment(settings: Settings) -> dict[str, str]:
    """Return the settings of a test as variables for another process."""
    secrets = {
        "DATABASE_URL": settings.database_url,
        "REDIS_URL": settings.redis_url,
        "LETHE_IDENTITY_KEY": settings.identity_key,
        "LETHE_SIGNING_KEY": settings.signing_key,
        "LETHE_LOG_KEY": settings.log_key,
        "LETHE_ARTIFACT_URL": settings.artifact_url,
    }
    return {
        **{name: value.get_secret_value() for name, value in secrets.items() if value},
        "LETHE_DATA_DIR": str(settings.data_dir),
        "LETHE_BATCH_WINDOW_SECONDS": str(settings.batch_window_seconds),
        "LETHE_LEASE_SECONDS": str(settings.lease_seconds),
        "LETHE_SWEEP_SECONDS": str(settings.sweep_seconds),
        "LETHE_MAX_ATTEMPTS": str(settings.max_attempts),
    }
