"""Connections to the database: how each is configured, and the limits after which a lost or stopped peer is given up.

A host that is lost or stopped inside a transaction keeps its locks until the database ends the connection. PostgreSQL
does so by its own timer after IDLE_IN_TRANSACTION_SECONDS, whatever the network reports. On SQLite the lock belongs to
the process, so the supervisor of `lethe up` ends stopped processes (lethe/local/stopped.py).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import ConnectionPoolEntry

WRITE_OPTION = "lethe_write"
"""Execution option of connections that write: their SQLite transactions begin as writers."""
SQLITE_BUSY_SECONDS = 30.0
"""Time to wait for another writer: longer than the publication of a large batch."""

CONNECT_SECONDS = 5
LOCK_SECONDS = 10
"""Time to wait for a lock. A client gets status 503 then, and a worker tries again."""
STATEMENT_SECONDS = 60
"""Longest statement. Publication and migrations are exempt (dialect.py): they must end, however large the tables."""
IDLE_IN_TRANSACTION_SECONDS = 30
"""Longest pause between two statements of a transaction. Takeover waits for this or for the lease, whichever is longer.

A computation inside a transaction that may take longer uses `dialect.stay_active`.
"""
KEEPALIVE_SECONDS = {"idle": 10, "interval": 5, "count": 3}
"""A peer without an answer for 10 + 3 x 5 seconds is lost. Both sides probe: each has to notice the other's loss."""
UNACKNOWLEDGED_SECONDS = 25
"""Time after which a peer that does not acknowledge sent data is lost."""

SERVER_LIMITS = {
    "lock_timeout": f"{LOCK_SECONDS}s",
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS}s",
    **{f"tcp_keepalives_{name}": value for name, value in KEEPALIVE_SECONDS.items()},
    "tcp_user_timeout": f"{UNACKNOWLEDGED_SECONDS}s",
}
"""Settings of PostgreSQL for our sessions."""


def open_engine(url: str) -> Engine:
    """Return an engine for the URL. Nothing is connected yet."""
    return _sqlite_engine(url) if url.startswith("sqlite") else _postgresql_engine(url)


def _postgresql_engine(url: str) -> Engine:
    arguments = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        **{f"keepalives_{name}": value for name, value in KEEPALIVE_SECONDS.items()},
        "tcp_user_timeout": 1000 * UNACKNOWLEDGED_SECONDS,
        "options": " ".join([*(f"-c {name}={value}" for name, value in SERVER_LIMITS.items()), _own_options(url)]),
    }
    return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)


def _own_options(url: str) -> str:
    """Return the server's options in the URL itself. They come last, so that they prevail over ours."""
    options = make_url(url).query.get("options", ())
    return options if isinstance(options, str) else " ".join(options)


def _sqlite_engine(url: str) -> Engine:
    engine, path = create_engine(url, hide_parameters=True), make_url(url).database

    @event.listens_for(engine, "do_connect")
    def _create(*_: Any) -> None:
        # SQLite would create the file readable by everybody. Its log gets the mode of the file. Errors are SQLite's. A
        # file that exists is never opened here: closing it again would drop the locks that this process has on it.
        if path:
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
        # Switches off the driver's own transaction handling: only _begin below starts transactions.
        connection.isolation_level = None
        connection.create_function("clock_timestamp", 0, _host_time)  # PostgreSQL has one, which every process shares
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * SQLITE_BUSY_SECONDS)}")
        _use_wal(connection)
        for pragma in (
            "synchronous = FULL",  # 201 means durable, also through a power cut
            "foreign_keys = ON",
            "secure_delete = ON",  # erased identities are overwritten, not only unlinked
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A reader that starts to write fails at once if another transaction wrote meanwhile; BEGIN IMMEDIATE waits.
        writes = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _host_time() -> str:
    """Return this host's time as SQLAlchemy stores times in SQLite."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _use_wal(connection: Any) -> None:
    """Switch to write-ahead logging.

    Retries, because SQLite refuses one of two processes that open a new file at once without waiting.
    """
    deadline = time.monotonic() + SQLITE_BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
