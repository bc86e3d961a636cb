from __future__ import annotations

import threading

import pytest
from sqlalchemy import func, select

from service.settings import Settings
from service.store.database import Database
from service.store.deletions import absences as store_absences
from service.store.signing.keys import open_signer
from service.store.tables import Absence
from tests.service.store.deletions.test_absences import ask, make_binding
from tests.waiting import wait_until
from worker import absences
from worker.absences import run_absences, settle_all

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def count_absences(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(Absence)) or 0


def test_all_due_absences_are_settled(settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (absences, store_absences):
        monkeypatch.setattr(module, "MAX_SETTLED", 2)
    signer = open_signer(settings, database)
    for _ in range(5):
        ask(settings, database)
    assert settle_all(database, signer) == 0
    make_binding(database)
    assert settle_all(database, signer) == 5
    assert count_absences(database) == 5


def test_the_thread_goes_on_after_a_failure(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([ConnectionError("away")])

    def settle(*arguments: object) -> int:
        if failure := next(failures, None):
            raise failure
        return settle_all(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(absences, "settle_all", settle)
    ask(settings, database)
    make_binding(database)
    stop = threading.Event()
    thread = threading.Thread(target=run_absences, args=(settings.model_copy(update={"sweep_seconds": 0.05}), stop))
    thread.start()
    wait_until(lambda: count_absences(database) == 1, "the absence is certified")
    stop.set()
    thread.join()
