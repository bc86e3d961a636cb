from __future__ import annotations

import pytest
from sqlalchemy import select

from service.store import erasure_traces
from service.store.database import Database
from service.store.erasure_traces import TABLES, TraceClearer, add_trace
from service.store.tables import Base, ErasureTrace, Subject


def count_traces(database: Database) -> int:
    with database.reading() as session:
        return len(session.scalars(select(ErasureTrace)).all())


def erase_once(database: Database) -> None:
    with database.writing() as session:
        add_trace(session)


def test_traces_are_cleared_and_tables_rewritten_at_most_once_a_minute(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clearer = TraceClearer(database)
    assert clearer.clear() == 0
    for _ in range(2):
        erase_once(database)
    assert clearer.clear() == 2
    assert count_traces(database) == 0
    erase_once(database)
    assert clearer.clear() == 0
    assert count_traces(database) == 1
    monkeypatch.setattr(erasure_traces, "REWRITE_SECONDS", 0.0)
    assert clearer.clear() == 1


def test_a_trace_stays_until_the_files_could_be_cleared(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure_traces, "rewrite_tables", lambda *_: False)
    erase_once(database)
    assert TraceClearer(database).clear() == 0
    assert count_traces(database) == 1


def test_every_table_with_a_persons_key_is_rewritten() -> None:
    with_secrets = {table.name for table in Base.metadata.sorted_tables if {"key", "salt"} & set(table.columns.keys())}
    assert with_secrets - {"idempotency_keys"} == set(TABLES)
    assert Subject.__tablename__ in TABLES
