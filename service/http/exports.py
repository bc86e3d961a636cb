"""Audit entries for exports, which take a whole list out of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from service.store import audit
from service.store.access.tokens import Caller
from service.store.database import Database


def record_export(database: Database, caller: Caller, subject: str, filters: Mapping[str, Any]) -> None:
    """Record an export with the filters used. Called before the first row is sent, so that aborted exports count."""
    used = {name: to_jsonable_python(value) for name, value in filters.items() if value not in (None, [], ())}
    with database.writing() as session:
        audit.record(session, caller.name, "export.made", subject, filters=used)
