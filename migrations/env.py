"""Alembic's entry point: migrates the connection it is given, or the configured database."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from service.settings import load_settings
from service.store.database import Database
from service.store.dialect import UtcDateTime
from service.store.tables import Base


def render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Render plain column types, so that an old migration never breaks on newer code."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        render_item=render,
        render_as_batch=connection.dialect.name == "sqlite",  # SQLite cannot alter a column in place
    )
    with context.begin_transaction():
        context.run_migrations()


given_connection: Connection | None = context.config.attributes.get("connection")
if given_connection is not None:
    run(given_connection)
else:
    database = Database(load_settings().database)
    with database.engine.begin() as own_connection:
        run(own_connection)
    database.close()
