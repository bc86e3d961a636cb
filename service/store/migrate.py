"""Migration of a database to the schema of this code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.store import dialect
from service.store.database import Database


def upgrade(database: Database) -> None:
    """Migrate to the newest schema. Safe to run in two processes at once."""
    _run(database, lambda config: command.upgrade(config, "head"))


def check(database: Database) -> None:
    """Raise unless the migrated database matches the tables in the code."""
    _run(database, command.check)


def is_current(database: Database) -> bool:
    """Whether the database has the schema of this code."""
    with database.engine.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    return revision == _newest_revision()


def downgrade(database: Database) -> None:
    """Undo every migration."""
    _run(database, lambda config: command.downgrade(config, "base"))


def _run(database: Database, action: Callable[[Config], None]) -> None:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    with database.write_engine.begin() as connection:
        dialect.lift_limits(connection)
        # Two starting hosts would both see that the version table is missing; this makes the second one wait.
        dialect.lock(connection, "lethe-migrations")
        config.attributes["connection"] = connection
        action(config)


@functools.cache
def _newest_revision() -> str | None:
    return ScriptDirectory(str(_scripts())).get_current_head()


def _scripts() -> Path:
    """Return the migrations: beside this file in an installed package, at the top of the repository in a checkout."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.exists() else Path(__file__).parents[2] / "migrations"
