"""What is left in the database's files of rows that were deleted."""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text

from service.store import dead_rows
from service.store.database import Database
from service.store.dead_rows import find_settled, rewrite_tables, truncate_log
from service.store.tables import DeletionSubject, ErasureTrace, Subject
from tests.database_files import count_found, read_files

PEOPLE = 300


def insert_people(database: Database) -> list[dict[str, Any]]:
    rows = [
        {"id": uuid.uuid4(), "lookup": secrets.token_bytes(32), "key": secrets.token_bytes(32)} for _ in range(PEOPLE)
    ]
    with database.writing() as session:
        session.execute(insert(Subject), rows)
    return rows


def delete_people(database: Database, rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """Delete them one by one, as batches do: pages are rearranged in between. Return what identified them."""
    for row in rows:
        with database.writing() as session:
            session.execute(delete(Subject).where(Subject.id == row["id"]))
    return [value for row in rows for value in (row["lookup"], row["key"])]


def test_deleted_keys_leave_the_files_when_tables_are_rewritten(database: Database) -> None:
    rows = insert_people(database)
    with database.writing() as session:
        session.execute(text("ANALYZE subjects"))  # the planner's statistics must not hold samples of keys
    erased = delete_people(database, rows[::4])
    assert count_found(read_files(database), erased) > 0  # otherwise the test shows nothing
    assert rewrite_tables(database.engine, ["subjects"])
    content = read_files(database)
    assert count_found(content, erased) == 0
    others = [row for index, row in enumerate(rows) if index % 4]
    assert count_found(content, [row["key"] for row in others]) == len(others)
    with database.reading() as session:
        assert set(session.scalars(select(Subject.lookup))) == {row["lookup"] for row in others}


def test_references_to_rewritten_rows_stay(database: Database) -> None:
    """On SQLite the rows are taken out and put back."""
    rows = insert_people(database)
    with database.writing() as session:
        session.execute(text("DELETE FROM subjects WHERE id IN (SELECT id FROM subjects LIMIT 1)"))
    rewrite_tables(database.engine, ["subjects"])
    with database.reading() as session:
        assert session.scalars(select(DeletionSubject)).all() == []
        assert len(session.scalars(select(Subject)).all()) == len(rows) - 1
    if database.engine.dialect.name == "sqlite":  # the next connection checks references again
        with database.engine.connect() as connection:
            assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


def test_a_large_table_is_not_rewritten(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_rows, "REWRITE_ROWS", PEOPLE // 2)
    monkeypatch.setattr(dead_rows, "REWRITE_BYTES", 0)
    erased = delete_people(database, insert_people(database)[::4])
    assert rewrite_tables(database.engine, ["subjects"])
    assert count_found(read_files(database), erased) < len(erased)  # but vacuumed, and the log truncated


def test_the_write_ahead_log_of_sqlite_is_emptied(database: Database) -> None:
    if database.engine.dialect.name != "sqlite":
        assert truncate_log(database.engine)
        return
    insert_people(database)
    with database.reading() as session:
        session.execute(select(Subject)).first()
        with database.writing() as other:
            other.execute(delete(Subject))
        assert not truncate_log(database.engine)  # a reader still needs it
    assert truncate_log(database.engine)
    assert Path(f"{database.engine.url.database}-wal").read_bytes() == b""


def test_a_locked_table_is_left_for_later(database: Database) -> None:
    insert_people(database)
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with database.writing() as session:
            session.execute(delete(Subject))
            locked.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(20)
    assert not rewrite_tables(database.engine, ["subjects"])
    done.set()
    thread.join()
    assert rewrite_tables(database.engine, ["subjects"])


def test_rows_that_an_older_transaction_can_see_are_not_settled(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        return  # its log cannot be truncated while a reader is older
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as older:
        older.execute(select(Subject)).all()
        with database.writing() as session:
            session.add(ErasureTrace())
        with database.reading() as session:
            assert find_settled(session) == []
    with database.reading() as session:
        assert len(find_settled(session)) == 1
