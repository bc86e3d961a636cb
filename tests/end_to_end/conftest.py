from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import psutil
import pytest

from lethe import Client
from tests.signals import restore_signals
from tests.waiting import wait_until


@dataclass(frozen=True)
class Running:
    """`lethe up`, started as a user does."""

    url: str
    data_dir: Path
    process: subprocess.Popen[bytes]

    def client(self, role: str) -> Client:
        return Client(self.url, (self.data_dir / "tokens" / f"{role}.token").read_text())

    def processes(self) -> Mapping[str, int]:
        processes = json.loads((self.data_dir / "processes.json").read_text())
        return {name: process["pid"] for name, process in processes.items()}

    def ready(self) -> bool:
        return is_ready(self.url)

    def log(self) -> list[dict[str, object]]:
        lines = (self.data_dir / "service.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, list[psutil.Process]]:
        """Stop it; return its exit code and the descendants that still run."""
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        code = self.process.wait(timeout=40)
        return code, [child for child in descendants if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def embedded_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}


@contextmanager
def starting(
    folder: Path, env: Mapping[str, str], output: IO[bytes] | None = None, workers: int = 1
) -> Iterator[Running]:
    data_dir, port = folder / "data", free_port()
    command = [sys.executable, "-m", "lethe", "up", "--data-dir", str(data_dir), "--port", str(port)]
    command += ["--workers", str(workers)]
    data_dir.mkdir()
    log_file = ["--log-file", str(data_dir / "service.log")]
    process = subprocess.Popen(
        [*command, *log_file], env=env, cwd=folder, stdout=output, stderr=output, preexec_fn=restore_signals
    )
    running = Running(f"http://127.0.0.1:{port}", data_dir, process)
    try:
        wait_until(running.ready, "lethe up is ready", timeout=60)
        yield running
    finally:
        if process.poll() is None:
            running.stop()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    with starting(tmp_path, {**embedded_environment(), "LETHE_LEASE_SECONDS": "3"}) as running:
        yield running
