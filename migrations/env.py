"""Alembic's entry: migrates the database it is handed, or the one the settings name."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from service.settings import load_settings
from service.store.database import Database
from service.store.dialect import UtcDateTime
from service.store.tables import Base


def render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Migrations name plain column types, so that an old one never breaks on newer code."""
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


handed_over: Connection | None = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    database = Database(load_settings().database)
    with database.engine.begin() as own:
        run(own)
    database.close()
