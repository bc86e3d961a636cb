from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.store.database import Database
from service.store.database_errors import is_damaged, is_disk_full, is_lock_timeout, is_row_held

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def meanings(error: BaseException | None) -> list[bool]:
    return [is_disk_full(error), is_damaged(error), is_lock_timeout(error)]


def test_a_full_disk_of_sqlite(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "small.db")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("PRAGMA max_page_count = 2")
    with pytest.raises(sqlite3.OperationalError) as full:
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    connection.close()
    assert meanings(full.value) == [True, False, False]


def test_a_damaged_file_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(b"not a database at all" * 1000)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.DatabaseError) as damaged:
        connection.execute("SELECT * FROM t")
    connection.close()
    assert meanings(damaged.value) == [False, True, False]


def test_a_damaged_page_of_sqlite(tmp_path: Path) -> None:
    """The error has an extended code or not, depending on the page."""
    path = tmp_path / "damaged.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 100)
    connection.commit()
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.DatabaseError) as damaged:
        connection.execute("SELECT * FROM t").fetchall()
    connection.close()
    assert meanings(damaged.value) == [False, True, False]


def test_a_locked_file_of_sqlite(tmp_path: Path) -> None:
    holder, waiter = (sqlite3.connect(tmp_path / "locked.db", isolation_level=None, timeout=0) for _ in range(2))
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as locked:
        waiter.execute("BEGIN IMMEDIATE")
    for connection in (holder, waiter):
        connection.close()
    assert meanings(locked.value) == [False, False, True]
    assert not is_row_held(locked.value)


@on_postgresql
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("53100", [True, False, False]),
        ("XX001", [False, True, False]),
        ("XX002", [False, True, False]),
        ("55P03", [False, False, True]),
        ("53200", [False, False, False]),
    ],
)
def test_codes_of_postgresql(database: Database, code: str, expected: list[bool]) -> None:
    with pytest.raises(DBAPIError) as error, database.writing() as session:
        session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'test' USING ERRCODE = '{code}'; END $$"))
    assert meanings(error.value.orig) == expected
    assert is_row_held(error.value.orig) is (code == "55P03")


def test_other_errors_mean_none_of_these() -> None:
    assert meanings(sqlite3.OperationalError("no such table")) == [False, False, False]
    assert meanings(None) == [False, False, False]
