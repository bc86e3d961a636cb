from __future__ import annotations

from typing import Any

from sqlalchemy import select

from service.store import audit
from service.store.database import Database
from service.store.tables import AuditEntry, now
from vocabulary.bound import Rung


def read_entries(database: Database) -> list[tuple[str, str, str, dict[str, Any]]]:
    with database.reading() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id)).all()
    assert all(entry.at <= now() and entry.leaf_index is None for entry in entries)
    return [(entry.actor, entry.action, entry.concerns, entry.details) for entry in entries]


def test_an_entry_is_written_with_its_transaction(database: Database) -> None:
    with database.writing() as session:
        audit.record(session, "acme", "model.registered", 7, posterior="d1")
        session.rollback()
    assert read_entries(database) == []
    with database.writing() as session:
        audit.record(session, "acme", "model.registered", 7, posterior="d1")
    assert read_entries(database) == [("acme", "model.registered", "7", {"posterior": "d1"})]


def test_each_rung_gets_an_entry_in_order(database: Database) -> None:
    rungs = [
        Rung.model_validate({"name": "influence", "seconds": 0.25, "epsilon": 1.0, "level": "none"}),
        Rung.model_validate({"name": "newton", "seconds": 0.5, "epsilon": 1e-8, "level": "proved"}),
    ]
    with database.writing() as session:
        audit.record_rungs(session, "worker", "b-1", rungs)
    assert read_entries(database) == [
        ("worker", "rung.tried", "b-1", {"rung": "influence", "bound": 1.0, "level": "none", "seconds": 0.25}),
        ("worker", "rung.tried", "b-1", {"rung": "newton", "bound": 1e-8, "level": "proved", "seconds": 0.5}),
    ]


def test_many_entries_are_written_in_one_statement(database: Database) -> None:
    with database.writing() as session:
        audit.record_each(session, "worker", "certificate.issued", {})
        audit.record_each(session, "worker", "certificate.issued", {1: {"level": "proved"}, 2: {"level": "estimated"}})
    assert read_entries(database) == [
        ("worker", "certificate.issued", "1", {"level": "proved"}),
        ("worker", "certificate.issued", "2", {"level": "estimated"}),
    ]
