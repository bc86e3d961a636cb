"""The test's side of forge.py."""

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
class Ended:
    """How a worker ended, and which boundaries it reached."""

    killed: bool
    exit_code: int
    passed: Sequence[str]


@dataclass(frozen=True)
class Forge:
    process: subprocess.Popen[str]

    def work(self, model_id: uuid.UUID, die_at: int | None = None) -> Ended:
        """Let a worker forget what is pending, or die on the way."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"model_id": str(model_id), "die_at": die_at}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the forge has ended; its log says why"
        return Ended(**json.loads(answer))


@contextmanager
def forging(settings: Settings, log_file: Path) -> Iterator[Forge]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forge"],
            env={**os.environ, **environment(settings), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        yield Forge(process)
        assert process.stdin
        process.stdin.close()


def environment(settings: Settings) -> dict[str, str]:
    """The settings of a test, for a process of its own."""
    secrets = {
        "DATABASE_URL": settings.database_url,
        "REDIS_URL": settings.redis_url,
        "LETHE_IDENTITY_KEY": settings.identity_key,
        "LETHE_SIGNING_KEY": settings.signing_key,
    }
    return {
        **{name: value.get_secret_value() for name, value in secrets.items() if value},
        "LETHE_DATA_DIR": str(settings.data_dir),
        "LETHE_BATCH_WINDOW_SECONDS": str(settings.batch_window_seconds),
        "LETHE_LEASE_SECONDS": str(settings.lease_seconds),
        "LETHE_SWEEP_SECONDS": str(settings.sweep_seconds),
        "LETHE_MAX_ATTEMPTS": str(settings.max_attempts),
    }
