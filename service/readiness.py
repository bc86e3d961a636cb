"""Readiness of the API: what it depends on, and what to do about each fault."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.http.timed_checks import Check, TimedChecks
from service.settings import Settings
from service.store import migrate
from service.store.access.secret_checks import CheckValue, find_mismatch
from service.store.artifacts.store import ArtifactStore
from service.store.database import Database
from service.store.database_errors import is_damaged
from service.store.errors import ArtifactsUnavailable
from service.store.signing.keys import find_inactive
from service.store.signing.statements import StatementSigner

TIMEOUT_SECONDS = 4.0
"""Below the 5 seconds after which probes give up."""
CACHE_SECONDS = 1.0
EXAMINATION_SECONDS = 3600.0
"""Interval of the examination of the whole database file. It takes a second for each gigabyte or so."""
PROBE_BYTES = 4096

NO_DATABASE = "the database does not answer; check DATABASE_URL and the database server"
DAMAGED = "the database is damaged; stop Lethe and restore the database from a backup (docs: back up and restore)"
NOT_MIGRATED = "the database does not have the schema of this version; run `lethe migrate` of this version"
DATABASE_FULL = "the disk of the database is full; free space there"
NO_BROKER = "the broker does not answer; check REDIS_URL; requests are accepted and processed once it is back"


def open_readiness(
    settings: Settings,
    database: Database,
    artifacts: ArtifactStore,
    identity_check: CheckValue,
    signer: StatementSigner,
    ping_broker: Callable[[], None],
) -> TimedChecks:
    """Return the checks of readiness. None has run yet."""
    readiness = Readiness(settings, database, artifacts, identity_check, signer, ping_broker, Examination(database))
    return TimedChecks(readiness.checks(), TIMEOUT_SECONDS, CACHE_SECONDS)


@dataclass(frozen=True)
class Readiness:
    settings: Settings
    database: Database
    artifacts: ArtifactStore
    identity_check: CheckValue
    signer: StatementSigner
    ping_broker: Callable[[], None]
    examination: Examination

    def checks(self) -> Mapping[str, Check]:
        return {
            "database": self._check_database,
            "keys": self._check_keys,
            "disk": self._check_disk,
            "artifacts": self._check_artifacts,
            "broker": self._check_broker,
        }

    def _check_database(self) -> str | None:
        try:
            is_current = migrate.is_current(self.database)
            if self.database.is_full:
                self.database.touch()
        except SQLAlchemyError as error:
            return _describe(error, self.database.is_full)
        self.examination.start_if_due()
        if self.database.is_damaged:
            return DAMAGED
        return None if is_current else NOT_MIGRATED

    def _check_keys(self) -> str | None:
        try:
            with self.database.reading() as session:
                return find_mismatch(session, self.identity_check) or find_inactive(session, self.signer)
        except SQLAlchemyError:
            return None  # the check of the database reports it

    def _check_disk(self) -> str | None:
        return next(self._disk_problems(), None)

    def _disk_problems(self) -> Iterator[str]:
        for name, folder in (
            ("data folder", self.settings.data_dir),
            ("temporary folder", Path(tempfile.gettempdir())),
        ):
            free = shutil.disk_usage(_existing(folder)).free
            if free < self.settings.min_free_bytes:
                yield f"the disk of the {name} is almost full: {free} bytes are free; free space (LETHE_MIN_FREE_BYTES)"
            elif folder.exists() and (reason := _probe(folder)):
                yield f"the {name} cannot be written ({reason}); check its disk and its permissions"

    def _check_artifacts(self) -> str | None:
        try:
            self.artifacts.ping()
        except (ArtifactsUnavailable, OSError) as error:
            return str(error)
        return None

    def _check_broker(self) -> str | None:
        try:
            self.ping_broker()
        except (BrokerError, OSError):
            return NO_BROKER
        return None


class Examination:
    """Occasional examination of the whole database, in a thread of its own: it may take minutes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._due_at = 0.0

    def start_if_due(self) -> None:
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + EXAMINATION_SECONDS
            threading.Thread(target=self._database.examine, name="examination", daemon=True).start()


def _describe(error: SQLAlchemyError, is_full: bool) -> str:
    if isinstance(error, DBAPIError) and is_damaged(error.orig):
        return DAMAGED
    return DATABASE_FULL if is_full else NO_DATABASE


def _existing(folder: Path) -> Path:
    """Return the folder, or the parent in which it would be created."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _probe(folder: Path) -> str | None:
    """Write a little to the folder and return why that failed. Some file systems report free space they refuse."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
