"""Limits on open connections, and on clients that are slow on purpose.

A new connection over a limit displaces the one that has waited longest without a request. So half-open connections
cannot keep others out, and a connection with a request is never closed for a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import structlog

from service.http.addresses import Network, is_within
from service.settings import Settings

log = structlog.get_logger("connections")
CHECK_SECONDS = 1.0
LOG_SECONDS = 60.0
"""At most one log line per interval: an attacker must not be able to fill the disk with them."""


@dataclass(frozen=True)
class ConnectionLimits:
    total: int
    per_address: int
    header_seconds: float
    """From the first byte of a request, or the start of the connection, to the end of its header."""
    progress_seconds: float
    """Interval in which a body or an answer must make progress."""
    proxies: tuple[Network, ...] = ()
    """Trusted proxies: their connections carry many clients, so the limit per address does not apply to them."""

    @classmethod
    def from_settings(cls, settings: Settings, file_limit: int) -> ConnectionLimits:
        """Leave file descriptors for the database, uploads and logs, whatever the settings say."""
        return cls(
            total=max(min(settings.max_connections, file_limit - RESERVED_FILES), 1),
            per_address=settings.max_connections_per_address,
            header_seconds=settings.header_seconds,
            progress_seconds=settings.progress_seconds,
            proxies=settings.proxy_networks,
        )


RESERVED_FILES = 256


class Connection(Protocol):
    host: str
    address: str
    """Key of the client by which connections are counted."""

    def is_too_slow(self, now: float) -> bool: ...

    def drop(self) -> None:
        """Close at once, without waiting for unsent bytes."""


class Connections:
    """Open connections of one server. `admit`, `wait`, `work` and `leave` follow the life of a connection."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        # In the order in which they began to wait, in all and by address.
        self._waiting: dict[Connection, None] = {}
        self._waiting_by_address: dict[str, dict[Connection, None]] = {}
        self._closed: Counter[str] = Counter()
        self._log_due = 0.0
        self._watch: asyncio.TimerHandle | None = None

    def admit(self, connection: Connection) -> bool:
        """Register a connection, if need be in place of a waiting one. False if it must be closed."""
        address = connection.address
        is_limited = not is_within(connection.host, self.limits.proxies)
        if is_limited and self._by_address[address] >= self.limits.per_address:
            is_admitted = self._displace(self._waiting_by_address.get(address, {}))
        else:
            is_admitted = len(self._open) < self.limits.total or self._displace(self._waiting)
        if not is_admitted:
            self.count("refused")
            return False
        self._open[connection] = None
        self._by_address[address] += 1
        self.wait(connection)
        self._watch = self._watch or asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)
        return True

    def wait(self, connection: Connection) -> None:
        """Note that the connection has no request now."""
        if connection in self._open:
            self._waiting.setdefault(connection)
            self._waiting_by_address.setdefault(connection.address, {}).setdefault(connection)

    def work(self, connection: Connection) -> None:
        """Note that the connection has a request."""
        if connection in self._waiting:
            del self._waiting[connection]
            waiting = self._waiting_by_address[connection.address]
            del waiting[connection]
            if not waiting:
                del self._waiting_by_address[connection.address]

    def leave(self, connection: Connection) -> None:
        if connection not in self._open:
            return
        self.work(connection)
        del self._open[connection]
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def count(self, cause: str) -> None:
        """Count a connection that was closed because of its client. The counts are logged once per interval."""
        self._closed[cause] += 1
        self._report(time.monotonic())

    def _displace(self, waiting: dict[Connection, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        self._drop(oldest, "displaced")
        return True

    def _drop(self, connection: Connection, cause: str) -> None:
        self.leave(connection)
        connection.drop()
        self.count(cause)

    def _check(self) -> None:
        now = time.monotonic()
        for connection in [connection for connection in self._open if connection.is_too_slow(now)]:
            self._drop(connection, "slow")
        self._report(now)
        is_needed = self._open or self._closed
        self._watch = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check) if is_needed else None

    def _report(self, now: float) -> None:
        if self._closed and now >= self._log_due:
            log.warning("connections.closed", **self._closed)
            self._closed.clear()
            self._log_due = now + LOG_SECONDS
