"""Bringing a database to the schema this code speaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from service.store.database import Database


def upgrade(database: Database) -> None:
    """Migrate to the newest schema. Two processes may do it at once."""
    _run(database, lambda config: command.upgrade(config, "head"))


def check(database: Database) -> None:
    """Raise unless the migrated database equals the tables in the code."""
    _run(database, command.check)


def is_current(database: Database) -> bool:
    """Whether the database has the schema this code speaks."""
    with database.engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    return found == ScriptDirectory(str(_scripts())).get_current_head()


def downgrade(database: Database) -> None:
    """Undo every migration."""
    _run(database, lambda config: command.downgrade(config, "base"))


def _run(database: Database, action: Callable[[Config], None]) -> None:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    with database.engine.execution_options(lethe_write=True).begin() as connection:
        if connection.dialect.name == "postgresql":
            # Two starting hosts would both find the version table missing; the second waits here instead.
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('lethe-migrations'))"))
        config.attributes["connection"] = connection
        action(config)


def _scripts() -> Path:
    """Beside this file in an installed package, at the top of the repository in a checkout."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.exists() else Path(__file__).parents[2] / "migrations"
