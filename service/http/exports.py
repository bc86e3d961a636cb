"""Exports leave the service in one piece, so who took what along is told in the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from service.store import audit
from service.store.access.tokens import Caller
from service.store.database import Database


def note_export(database: Database, caller: Caller, what: str, filters: Mapping[str, Any]) -> None:
    """Before the first row is sent: an export that breaks off was one too. Only filters that were used are told."""
    used = {name: to_jsonable_python(value) for name, value in filters.items() if value not in (None, [], ())}
    with database.writing() as session:
        audit.record(session, caller.name, "export.made", what, filters=used)
