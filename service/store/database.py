"""One engine, two kinds of transaction. SQLite (WAL) and PostgreSQL behave alike behind them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

SQLITE_BUSY_MILLISECONDS = 30_000


class Database:
    """Hands out sessions. Code below this line never commits; leaving the block does."""

    def __init__(self, url: str) -> None:
        self.engine = _sqlite_engine(url) if url.startswith("sqlite") else _postgresql_engine(url)
        self._write_engine = self.engine.execution_options(lethe_write=True)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A consistent look; nothing is written."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back if it raises."""
        with Session(self._write_engine, expire_on_commit=False) as session, session.begin():
            yield session

    def ping(self) -> None:
        """Raise unless the database answers."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()


def _postgresql_engine(url: str) -> Engine:
    return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args={"connect_timeout": 5})


def _sqlite_engine(url: str) -> Engine:
    engine = create_engine(url, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
        # The driver's own transaction handling is switched off: _begin below is the only one.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MILLISECONDS}")
        _use_wal(connection)
        for pragma in (
            "synchronous = FULL",  # 201 means durable, also through a power cut
            "foreign_keys = ON",
            "secure_delete = ON",  # erased identities are overwritten, not only unlinked
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A reader that turns writer fails at once when another wrote in between; a writer that says so first waits.
        writes = connection.get_execution_options().get("lethe_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: Any) -> None:
    """Of two processes that open a new file at once, SQLite refuses one without waiting: it has to ask again."""
    deadline = time.monotonic() + SQLITE_BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
