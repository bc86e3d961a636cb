"""`lethe up` in a process of its own, for the demo and for benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from lethe.client import Client

START_SECONDS = 60.0


class ServiceFailed(Exception):
    """The service did not start; the message gives the reason."""


@dataclass(frozen=True)
class Service:
    url: str
    data_dir: Path
    log_file: Path
    process: subprocess.Popen[bytes]

    def client(self, role: str) -> Client:
        return Client(self.url, (self.data_dir / "tokens" / f"{role}.token").read_text())


@contextmanager
def run_service(data_dir: Path, settings: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Run `lethe up` as a user would, on a free port, with its logs in a file; `settings` are added to its environment.

    Always embedded, whatever the environment says: nothing here may write to a real PostgreSQL.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    env |= settings or {}
    command = [sys.executable, "-m", "lethe", "up", "--data-dir", str(data_dir), "--port", str(port)]
    log_file = data_dir / "service.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--log-file", str(log_file)], env=env, cwd=data_dir, stdout=log, stderr=log
        )
    try:
        yield Service(f"http://127.0.0.1:{port}", data_dir, log_file, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def await_ready(service: Service) -> None:
    """Return as soon as the service answers; ServiceFailed if it ends first, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not _is_ready(service.url):
        if service.process.poll() is not None:
            raise ServiceFailed(service.log_file.read_text().splitlines()[-1])
        if time.monotonic() > deadline:
            raise ServiceFailed(f"the service was not ready after {START_SECONDS:.0f} s; see {service.log_file}")
        time.sleep(0.1)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.TransportError:
        return False
