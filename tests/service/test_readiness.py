"""Each dependency broken for real, and what readiness says about it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError as BrokerError
from pydantic import SecretStr
from sqlalchemy import text

from service import readiness
from service.http.timed_checks import TimedChecks
from service.readiness import Examination, open_readiness
from service.settings import Settings, new_key
from service.store.access.secret_checks import ensure_match
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.signing import keys
from service.store.signing.statements import StatementSigner
from tests import samples
from tests.faults.tcp_relay import relaying
from tests.s3_server import BUCKET, S3Server
from tests.waiting import wait_until

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def signer(settings: Settings, database: Database) -> StatementSigner:
    ensure_match(database, samples.hasher(settings).check)
    return keys.open_signer(settings, database)


def find_problems(
    settings: Settings, database: Database, signer: StatementSigner, ping_broker: Callable[[], None] = lambda: None
) -> Mapping[str, str]:
    return asyncio.run(open_checks(settings, database, signer, ping_broker).find_problems())


def open_checks(
    settings: Settings, database: Database, signer: StatementSigner, ping_broker: Callable[[], None] = lambda: None
) -> TimedChecks:
    check = samples.hasher(settings).check
    return open_readiness(settings, database, open_artifacts(settings), check, signer, ping_broker)


def test_nothing_is_wrong(settings: Settings, database: Database, signer: StatementSigner) -> None:
    assert find_problems(settings, database, signer) == {}


def test_the_database_is_down(settings: Settings, signer: StatementSigner, tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/no/such/folder/lethe.db", "postgresql+psycopg://lethe@127.0.0.1:1/lethe"):
        assert find_problems(settings, Database(url), signer) == {"database": readiness.NO_DATABASE}


@on_postgresql
def test_a_hung_database_does_not_hang_readiness(
    settings: Settings, database_url: str, signer: StatementSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "TIMEOUT_SECONDS", 0.5)
    with relaying(database_url) as relay:
        database = Database(relay.url)
        checks = open_checks(settings, database, signer)
        assert asyncio.run(checks.find_problems()) == {}
        relay.process.send_signal(signal.SIGSTOP)
        time.sleep(readiness.CACHE_SECONDS)
        started = time.monotonic()
        problems = asyncio.run(checks.find_problems())
        assert time.monotonic() - started < 3
        assert set(problems) == {"database", "keys"}
        relay.process.send_signal(signal.SIGCONT)
        wait_until(lambda: asyncio.run(checks.find_problems()) == {}, "the database answers again")
        database.close()


def test_the_schema_is_old(settings: Settings, database: Database, signer: StatementSigner) -> None:
    with database.writing() as session:
        version = session.scalar(text("SELECT version_num FROM alembic_version"))
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert find_problems(settings, database, signer) == {"database": readiness.NOT_MIGRATED}
    with database.writing() as session:  # the database is shared by all tests
        session.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


@on_sqlite
def test_the_database_is_damaged(settings: Settings, database_url: str, signer: StatementSigner) -> None:
    path = Path(database_url.removeprefix("sqlite:///"))
    path.write_bytes(b"\xff" * path.stat().st_size)
    path.with_name("lethe.db-wal").unlink(missing_ok=True)
    database = Database(database_url)
    assert find_problems(settings, database, signer) == {"database": readiness.DAMAGED}
    database.close()


@on_sqlite
def test_damage_that_no_request_meets_is_found_in_the_background(
    settings: Settings, database: Database, signer: StatementSigner, database_url: str
) -> None:
    with database.writing() as session:
        session.execute(text("PRAGMA user_version = 1"))
    database.close()  # merges the write-ahead log into the file
    path = Path(database_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    content[-8192:] = b"\xff" * 8192
    path.write_bytes(content)
    checks = open_checks(settings, database, signer)
    wait_until(lambda: asyncio.run(checks.find_problems()) == {"database": readiness.DAMAGED}, "the damage is reported")


def test_an_examination_runs_once_in_a_while(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[Database] = []
    monkeypatch.setattr(Database, "examine", lambda self: examined.append(self))
    examination = Examination(database)
    for _ in range(3):
        examination.start_if_due()
    wait_until(lambda: len(examined) == 1, "the first examination")
    monkeypatch.setattr(readiness, "EXAMINATION_SECONDS", 0.0)
    examination = Examination(database)
    for _ in range(2):
        examination.start_if_due()
    wait_until(lambda: len(examined) == 3, "two more examinations")


def test_a_full_disk_of_the_database_counts_until_a_write_succeeds(
    settings: Settings, database: Database, signer: StatementSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Database) -> None:
        with self.writing() as session:
            session.execute(text("SELECT * FROM nowhere"))  # any error of the database while the disk was full

    database.is_full = True
    with monkeypatch.context() as patch:
        patch.setattr(Database, "touch", fail)
        assert find_problems(settings, database, signer) == {"database": readiness.DATABASE_FULL}
    assert find_problems(settings, database, signer) == {}
    assert not database.is_full


@on_sqlite
def test_the_disk_is_almost_full(settings: Settings, database: Database, signer: StatementSigner) -> None:
    free = shutil.disk_usage(settings.data_dir.parent).free
    full = settings.model_copy(update={"min_free_bytes": sys.maxsize})
    (problem,) = find_problems(full, database, signer).values()
    assert problem.startswith("the disk of the data folder is almost full: ")
    assert "free space (LETHE_MIN_FREE_BYTES)" in problem
    assert find_problems(settings.model_copy(update={"min_free_bytes": free // 2}), database, signer) == {}


@on_sqlite
def test_a_folder_that_refuses_a_write_is_named(
    settings: Settings, database: Database, signer: StatementSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with free space that the file system refuses, as with a quota."""
    full = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115 - closed by what is tested
    monkeypatch.setattr(readiness.tempfile, "TemporaryFile", lambda **_: full)
    settings.data_dir.mkdir()
    assert find_problems(settings, database, signer) == {
        "disk": "the data folder cannot be written (No space left on device); check its disk and its permissions"
    }


def test_the_identity_key_is_another_one(settings: Settings, database: Database, signer: StatementSigner) -> None:
    other = settings.model_copy(update={"identity_key": SecretStr(new_key())})
    assert "LETHE_IDENTITY_KEY is not the secret" in find_problems(other, database, signer)["keys"]


def test_a_key_is_retired(settings: Settings, database: Database, signer: StatementSigner) -> None:
    with database.writing() as session:
        session.execute(text("UPDATE signing_keys SET retired_at = created_at"))
    (name,) = problems = find_problems(settings, database, signer)
    assert name == "keys"
    assert "was retired" in problems["keys"]
    assert "restart" in problems["keys"]


@on_sqlite
def test_the_bucket_cannot_be_reached(
    settings: Settings, database: Database, signer: StatementSigner, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = settings.model_copy(update={"artifact_url": SecretStr(f"s3://{BUCKET}/empty")})
    assert find_problems(bucket, database, signer) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(readiness, "TIMEOUT_SECONDS", 0.5)  # its library retries for longer
    (name,) = problems = find_problems(bucket, database, signer)
    assert name == "artifacts"
    assert "LETHE_ARTIFACT_URL" in problems[name] or "no answer" in problems[name]


@on_sqlite
def test_the_broker_is_down(settings: Settings, database: Database, signer: StatementSigner) -> None:
    def refuse() -> None:
        raise BrokerError("refused")

    assert find_problems(settings, database, signer, refuse) == {"broker": readiness.NO_BROKER}
