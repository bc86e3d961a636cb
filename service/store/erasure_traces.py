"""Traces of erasures in the database's files. The sweep removes them soon after."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.store.database import Database
from service.store.dead_rows import clear_dead_rows, find_settled
from service.store.dialect import chunks
from service.store.tables import ErasureTrace, RequestBody, Subject

TABLES = (Subject.__tablename__, RequestBody.__tablename__)
"""Tables whose rows lead to a person. All others hold commitments and random ids."""


def add_trace(session: Session) -> None:
    """Note that this transaction erases rows, whose content stays in the files for now."""
    session.add(ErasureTrace())


def clear_traces(database: Database) -> int:
    """Remove erased rows from the database's files; return the number of erasures that were cleared.

    Those that a running transaction may still see, or that a lock protects, are left to the next call.
    """
    with database.reading() as session:
        ids = find_settled(session)
    if not ids or not clear_dead_rows(database.engine, TABLES):
        return 0
    with database.writing() as session:
        for chunk in chunks(ids):
            session.execute(delete(ErasureTrace).where(ErasureTrace.id.in_(chunk)))
    return len(ids)
