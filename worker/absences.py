"""Background thread that certifies absences as soon as they are binding."""

from __future__ import annotations

import threading

import structlog

from service.settings import Settings
from service.store.database import Database
from service.store.deletions.absences import MAX_SETTLED, has_due_absences, settle_absences
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from worker.key_problems import KEY_PROBLEMS, KeyReport

log = structlog.get_logger("absences")


def settle_all(database: Database, signer: StatementSigner) -> int:
    """Settle all due absences and return their number. Checks first: a write would block other writers."""
    settled, latest = 0, MAX_SETTLED
    while latest == MAX_SETTLED and _has_due(database):
        with database.writing() as session:
            latest = settle_absences(session, signer)
        settled += latest
    return settled


def _has_due(database: Database) -> bool:
    with database.reading() as session:
        return has_due_absences(session)


def run_absences(settings: Settings, stop: threading.Event) -> None:
    """Settle absences until `stop` is set. An unavailable database is waited for, and so is a key that may sign."""
    database = Database(settings.database)
    signer: StatementSigner | None = None
    report = KeyReport("absences")
    while not stop.wait(settings.sweep_seconds):
        try:
            signer = signer or open_signer(settings, database)
            if settled := settle_all(database, signer):
                log.info("absences.certified", count=settled)
            report.clear()
        except KEY_PROBLEMS as error:
            report.wait(error)
            signer = None
        except Exception:
            log.exception("absences.failed")  # go on: nothing would restart this thread
    database.close()
