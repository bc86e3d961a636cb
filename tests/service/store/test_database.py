from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from service.store.database import Database
from service.store.tables import Token


def add_token(database: Database, digest: str) -> None:
    with database.writing() as session:
        session.add(Token(caller="acme", role="auditor", digest=digest))


def token_count(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(Token)) or 0


def test_writing_commits_when_its_block_ends(database: Database) -> None:
    add_token(database, "a")
    assert token_count(database) == 1


def test_writing_rolls_back_when_its_block_raises(database: Database) -> None:
    add_token(database, "a")
    with pytest.raises(IntegrityError), database.writing() as session:
        session.add_all([Token(caller="acme", role="auditor", digest=digest) for digest in ("b", "a")])
    assert token_count(database) == 1


def test_reading_does_not_commit(database: Database) -> None:
    with database.reading() as session:
        session.add(Token(caller="acme", role="auditor", digest="a"))
        session.flush()
    assert token_count(database) == 0


def test_objects_stay_readable_after_their_session(database: Database) -> None:
    add_token(database, "a")
    with database.writing() as session:
        token = session.scalars(select(Token)).one()
    assert token.digest == "a"


def test_writers_that_read_first_wait_for_each_other(database: Database) -> None:
    """On SQLite a transaction that turns from reading to writing would fail if another one wrote in between."""
    both_started = threading.Barrier(2)

    def add(digest: str) -> None:
        both_started.wait()
        for number in range(5):
            with database.writing() as session:
                session.scalar(select(func.count()).select_from(Token))
                session.add(Token(caller="acme", role="auditor", digest=f"{digest}{number}"))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, ("a", "b")))
    assert token_count(database) == 10


def test_a_full_disk_is_remembered_until_a_write_succeeds(database: Database) -> None:
    fail_with(database, full_disk())
    assert database.is_full
    with database.reading() as session:
        session.scalars(select(Token)).all()
    assert database.is_full
    database.touch()
    assert not database.is_full


def test_damage_is_remembered_until_an_examination_finds_none(database: Database) -> None:
    fail_with(database, damage())
    assert database.is_damaged
    database.touch()
    assert database.is_damaged
    database.examine()
    assert not database.is_damaged


def fail_with(database: Database, cause: Exception) -> None:
    with pytest.raises(DBAPIError), database.writing():
        raise DBAPIError("", {}, cause)


def full_disk() -> Exception:
    error = sqlite3.OperationalError("full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def damage() -> Exception:
    error = sqlite3.DatabaseError("malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_examination_finds_a_damaged_page_that_no_request_has_read(database_url: str) -> None:
    path = Path(database_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[-8192:] = b"\xff" * 8192
    path.write_bytes(content)
    database = Database(database_url)
    database.ping()
    database.examine()
    database.close()
    assert database.is_damaged


def test_ping_raises_unless_the_database_answers(database: Database, tmp_path: Path) -> None:
    database.ping()
    missing = Database(f"sqlite:///{tmp_path}/no/such/folder/lethe.db")
    with pytest.raises(OperationalError):
        missing.ping()
