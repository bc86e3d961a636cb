"""Settings and database of commands that run without the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from service.settings import ConfigurationError, load_settings

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.database import Database


@contextmanager
def open_store(data_dir: Path | None) -> Iterator[tuple[Settings, Database]]:
    """Yield the settings and a database that has this version's schema."""
    from service.settings.key_sources import KeyUnavailable
    from service.store.database import Database
    from service.store.errors import NotFound
    from service.store.migrate import is_current

    settings = load_settings(data_dir)
    database = Database(settings.database)
    try:
        if not is_current(database):
            raise ConfigurationError("the database does not have this version's schema: run `lethe migrate` first.")
        yield settings, database
    except (NotFound, KeyUnavailable) as error:
        raise typer.BadParameter(str(error)) from None
    finally:
        database.close()


def load_logged_settings(data_dir: Path | None) -> Settings:
    """Load the settings and configure logging by them."""
    from service.logs import configure_logging

    settings = load_settings(data_dir)
    configure_logging(settings.log_level)
    return settings


def load_ready_settings(data_dir: Path | None, *, speaks_opendsr: bool = False) -> Settings:
    """Load the settings of a process that needs the current schema and a key that may sign.

    A process that starts before the migration fails here, and is restarted by its supervisor. So does one that answers
    as an OpenDSR processor with another key than before.
    """
    from service.logs import configure_logging
    from service.store.signing.keys import open_signer
    from service.store.signing.processor_identity import open_processor

    with open_store(data_dir) as (settings, database):
        configure_logging(settings.log_level)
        open_signer(settings, database)
        if speaks_opendsr:
            open_processor(settings, database)
    return settings
