from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError

from service.settings import Settings
from service.settings.settings import LONGEST_SECONDS
from service.store import engines
from service.store.database import Database
from service.store.database_errors import is_lock_timeout
from service.store.dialect import lock, wait_for_locks
from tests.faults.tcp_relay import relaying

TCP_OPTIONS = {
    "SO_KEEPALIVE": socket.SOL_SOCKET,
    **dict.fromkeys(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"), socket.IPPROTO_TCP),
}

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def test_sqlite_runs_with_wal_foreign_keys_and_secure_delete(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/new.db")
    with database.engine.connect() as connection:
        pragmas = ("journal_mode", "foreign_keys", "secure_delete", "synchronous", "busy_timeout")
        values = [connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() for pragma in pragmas]
    database.close()
    assert values == ["wal", 1, 1, 2, 30_000]


def test_the_files_of_sqlite_are_private(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/new.db")
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (b INTEGER)")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    database.close()
    assert modes == dict.fromkeys(("new.db", "new.db-wal", "new.db-shm"), 0o600)


def test_a_second_connection_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """POSIX drops all locks of a process on a file when it closes any descriptor of that file.

    Another process that closes the file would then believe to be the last, and remove the log into which this one
    writes.
    """
    path = tmp_path / "new.db"
    database = Database(f"sqlite:///{path}")
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (b INTEGER)")
    with database.engine.connect() as first, database.engine.connect() as second:
        for held in (first, second):
            held.exec_driver_sql("SELECT * FROM a")
            held.rollback()
        assert _count_in_another_process(path, "INSERT INTO a VALUES (1)") == 1
        second.exec_driver_sql("INSERT INTO a VALUES (2)")
        second.commit()
        assert _count_in_another_process(path) == 2
    database.close()


def _count_in_another_process(path: Path, statement: str = "SELECT 1") -> int:
    program = f"""
import sqlite3
connection = sqlite3.connect({str(path)!r})
connection.execute({statement!r})
connection.commit()
print(connection.execute("SELECT count(*) FROM a").fetchone()[0])
connection.close()
"""
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


@on_postgresql
def test_a_transaction_waits_for_a_lock_no_longer_than_its_limit(database: Database) -> None:
    with database.writing() as holder:
        lock(holder, "a")
        with database.writing() as waiter:
            wait_for_locks(waiter, 0.05)
            with pytest.raises(OperationalError) as error:
                lock(waiter, "a")
            waiter.rollback()
    assert is_lock_timeout(error.value.orig)


@on_postgresql
def test_a_transaction_that_pauses_too_long_loses_its_locks(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is on the client's side: PostgreSQL ends it whatever the client does, and nothing is committed."""
    limits = {**engines.SERVER_LIMITS, "idle_in_transaction_session_timeout": "100ms"}
    monkeypatch.setattr(engines, "SERVER_LIMITS", limits)
    database = Database(database_url)
    with database.reading() as session:
        lock(session, "a")
        with database.writing() as successor:
            started = time.monotonic()
            lock(successor, "a")
        with pytest.raises(DBAPIError) as error:
            session.execute(text("SELECT 1"))
    database.close()
    assert time.monotonic() - started < 5
    assert error.value.connection_invalidated


@on_postgresql
def test_options_of_the_url_prevail(database_url: str) -> None:
    url = make_url(database_url).update_query_dict({"options": "-c lock_timeout=3s -c work_mem=5MB"})
    database = Database(url.render_as_string(hide_password=False))
    with database.reading() as session:
        values = [session.scalar(text(f"SHOW {name}")) for name in ("lock_timeout", "work_mem", "statement_timeout")]
    database.close()
    assert values == ["3s", "5MB", "1min"]


@on_postgresql
def test_connections_over_tcp_notice_a_lost_server(database_url: str) -> None:
    with relaying(database_url) as relay:
        database = Database(relay.url)
        with database.engine.connect() as connection:
            descriptor = connection.connection.driver_connection.fileno()  # type: ignore[union-attr]
            with socket.socket(fileno=os.dup(descriptor)) as peer:
                values = {name: peer.getsockopt(level, getattr(socket, name)) for name, level in TCP_OPTIONS.items()}
        database.close()
    assert values == {
        "SO_KEEPALIVE": 1,
        "TCP_KEEPIDLE": 10,
        "TCP_KEEPINTVL": 5,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 25_000,
    }


def test_takeover_takes_less_than_a_minute_with_the_longest_lease() -> None:
    """A batch is free when its lease has expired and its transaction, if one is open, has been ended."""
    free = max(LONGEST_SECONDS["lease_seconds"], engines.IDLE_IN_TRANSACTION_SECONDS)
    assert free + LONGEST_SECONDS["sweep_seconds"] < 60
    keepalive = engines.KEEPALIVE_SECONDS
    assert keepalive["idle"] + keepalive["count"] * keepalive["interval"] <= engines.IDLE_IN_TRANSACTION_SECONDS
    defaults = Settings(_env_file=None)  # type: ignore[call-arg]
    assert defaults.lease_seconds < engines.IDLE_IN_TRANSACTION_SECONDS
