from __future__ import annotations

import uuid

import pytest
from sqlalchemy import delete

from service.settings import Settings
from service.store import dialect
from service.store.database import Database
from service.store.deletions.holdings import Holdings, find_holdings
from service.store.deletions.views import NamedRecord
from service.store.tables import Record
from tests import samples

ROWS = samples.PEOPLE * samples.ROWS_EACH


def find(settings: Settings, database: Database, *people: int, records: list[NamedRecord] | None = None) -> Holdings:
    lookups = [samples.lookup(settings, person) for person in people]
    with database.reading() as session:
        return find_holdings(session, lookups, records or [], [])


def test_a_subject_is_found_in_each_of_its_models(settings: Settings, database: Database) -> None:
    model_ids = {samples.register_sample(settings, database) for _ in range(2)}
    holdings = find(settings, database, 1, 999)
    assert list(holdings.subjects) == [samples.lookup(settings, 1)]
    (subject,) = holdings.subjects.values()
    assert sorted(subject.model_ids) == sorted(model_ids)


def test_erased_records_are_not_held_but_count_as_registered(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.writing() as session:
        session.execute(delete(Record).where(Record.model_id == model_id, Record.record == 4))
    named = [NamedRecord(model_id, 4), NamedRecord(model_id, 5), NamedRecord(uuid.uuid4(), 5)]
    holdings = find(settings, database, records=named)
    assert holdings.records == {NamedRecord(model_id, 5)}
    assert holdings.record_counts == {model_id: ROWS}


def test_many_names_are_looked_up_in_several_statements(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "CHUNK_SIZE", 3)
    model_id = samples.register_sample(settings, database)
    named = [NamedRecord(model_id, row) for row in range(ROWS)]
    holdings = find(settings, database, *range(samples.PEOPLE), records=named)
    assert len(holdings.subjects) == samples.PEOPLE
    assert holdings.records == set(named)
