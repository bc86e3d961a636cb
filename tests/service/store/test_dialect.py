from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Connection, event, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.store import dialect, engines
from service.store.access.identities import ensure_subjects, find_subjects
from service.store.database import Database
from service.store.dialect import (
    allow_long_work,
    byte_position,
    chunks,
    insert,
    lift_limits,
    lock,
    plan_for_values,
    stay_active,
    try_locks,
    wait_for_locks,
)
from service.store.states import BatchStatus
from service.store.tables import Batch, LogTile, Model, SigningKey, Token

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def add_model(database: Database) -> uuid.UUID:
    model = Model(id=uuid.uuid4(), name="m", family="f", posterior_kind="variational", config={}, policy={})
    with database.writing() as session:
        session.add(model)
    return model.id


def running_batch(model_id: uuid.UUID, status: BatchStatus = BatchStatus.RUNNING) -> Batch:
    return Batch(model_id=model_id, status=status, worker="w", lease_expires_at=datetime.now(UTC))


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (3, [3]), (7, [3, 3, 1])])
def test_chunks_hold_every_value_once_in_order(count: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "CHUNK_SIZE", 3)
    parts = list(chunks(iter(range(count))))
    assert [len(part) for part in parts] == sizes
    assert [value for part in parts for value in part] == list(range(count))


def test_a_statement_takes_a_full_chunk_of_rows(database: Database) -> None:
    """Three parameters for each row; SQLite refuses more than 32,766."""
    lookups = [number.to_bytes(32, "big") for number in range(dialect.CHUNK_SIZE + 1)]
    with database.writing() as session:
        assert len(ensure_subjects(session, lookups)) == len(lookups)
        assert len(find_subjects(session, lookups)) == len(lookups)


def test_insert_ignores_or_updates_on_conflict(database: Database) -> None:
    row = {"key_id": "k", "public_key": bytes(32), "created_at": datetime.now(UTC)}
    with database.writing() as session:
        session.execute(insert(session, SigningKey).values(row))
        session.execute(insert(session, SigningKey).values({**row, "reason": "ignored"}).on_conflict_do_nothing())
        assert session.scalar(select(SigningKey.reason)) is None
        changed = insert(session, SigningKey).values(row)
        session.execute(changed.on_conflict_do_update(index_elements=["key_id"], set_={"reason": "updated"}))
        assert session.scalar(select(SigningKey.reason)) == "updated"


def test_times_come_back_aware_and_in_utc(database: Database) -> None:
    tokyo = datetime(2026, 1, 2, 3, 4, 5, 678901, timezone(timedelta(hours=9)))
    with database.writing() as session:
        session.add(Token(caller="acme", role="auditor", digest="d", created_at=tokyo))
    with database.reading() as session:
        created_at, revoked_at = session.execute(select(Token.created_at, Token.revoked_at)).one()
    assert (created_at, created_at.tzinfo, revoked_at) == (tokyo, UTC, None)


def test_a_partial_index_concerns_only_the_rows_it_matches(database: Database) -> None:
    model_id = add_model(database)
    with database.writing() as session:
        session.add_all([running_batch(model_id), running_batch(model_id, BatchStatus.FAILED)])
        session.add(running_batch(model_id, BatchStatus.FAILED))
    with pytest.raises(IntegrityError), database.writing() as session:
        session.add(running_batch(model_id))


@pytest.mark.parametrize(("value", "position"), [(b"\x00\x01", 1), (b"\xff\x00", 4), (b"\x05", 0)])
def test_byte_position_counts_from_1(database: Database, value: bytes, position: int) -> None:
    with database.writing() as session:
        session.add(LogTile(level=0, number=0, hashes=b"\x00\x01\x02\xff\x00"))
        session.flush()
        assert session.scalar(select(byte_position(session, LogTile.hashes, value))) == position


@on_postgresql
def test_a_lock_is_held_until_its_transaction_ends(database: Database) -> None:
    with ThreadPoolExecutor(1) as pool:
        with database.writing() as session:
            lock(session, "a")
            lock(session, "a")
            with database.writing() as other:
                lock(other, "b")  # another name: does not wait

            def wait() -> None:
                with database.writing() as waiting:
                    lock(waiting, "a")

            waiter = pool.submit(wait)
            with pytest.raises(TimeoutError):
                waiter.result(timeout=0.2)
        waiter.result(timeout=10)


@on_postgresql
def test_try_locks_returns_the_numbers_that_another_transaction_holds(database: Database) -> None:
    with database.writing() as first, database.writing() as second:
        assert try_locks(first, [-1, 2**63 - 1]) == frozenset()
        assert try_locks(second, [-1, 7]) == {-1}
        assert try_locks(first, [-1, 7]) == {7}
    with database.writing() as session:
        assert try_locks(session, [-1, 7]) == frozenset()


@on_sqlite
def test_sqlite_writers_need_no_locks(database: Database) -> None:
    with database.writing() as session:
        lock(session, "a")
        assert try_locks(session, [1]) == frozenset()
        plan_for_values(session)


@on_postgresql
def test_postgresql_plans_for_the_values_of_a_transaction(database: Database) -> None:
    with database.reading() as session:
        plan_for_values(session)
        assert session.scalar(text("SHOW plan_cache_mode")) == "force_custom_plan"
    with database.reading() as session:
        assert session.scalar(text("SHOW plan_cache_mode")) == "auto"


LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


def limits(session: Session | Connection) -> list[str]:
    return [session.execute(text(f"SHOW {name}")).scalar_one() for name in LIMITS]


@on_postgresql
def test_limits_are_changed_for_one_transaction(database: Database) -> None:
    with database.reading() as session:
        assert limits(session) == ["10s", "1min", "30s"]
        wait_for_locks(session, 0.5)
        assert limits(session) == ["500ms", "1min", "30s"]
    with database.reading() as session:
        allow_long_work(session)
        assert limits(session) == ["45s", "0", "30s"]
    with database.engine.begin() as connection:
        lift_limits(connection)
        assert limits(connection) == ["0", "0", "0"]
    with database.reading() as session:
        assert limits(session) == ["10s", "1min", "30s"]


def test_a_long_computation_sends_a_statement_now_and_then(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "ACTIVITY_SECONDS", 0.02)
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    nothing = str(dialect._NOTHING)
    with database.reading() as session:
        assert list(stay_active(session, range(3))) == [0, 1, 2]
        assert nothing not in statements
        for _ in stay_active(session, range(3)):
            time.sleep(0.03)
    assert statements.count(nothing) == 2


@on_sqlite
def test_sqlite_has_no_limits_to_change(database: Database) -> None:
    with database.writing() as session:
        wait_for_locks(session, 1.0)
        allow_long_work(session)
        lift_limits(session.connection())


def test_statements_come_far_more_often_than_a_session_is_ended() -> None:
    assert dialect.ACTIVITY_SECONDS * 10 <= engines.IDLE_IN_TRANSACTION_SECONDS


def test_publication_waits_longer_than_a_stopped_publisher_holds_its_locks() -> None:
    assert dialect.PUBLICATION_LOCK_SECONDS > engines.IDLE_IN_TRANSACTION_SECONDS
