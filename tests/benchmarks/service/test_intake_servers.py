from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, inspect, select

from benchmarks.service.database import scratch_settings
from benchmarks.service.intake_servers import ROWS, person, prepare
from service.store.access.tokens import find_caller
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Subject


def test_preparation_creates_both_tables_the_people_and_a_token(tmp_path: Path) -> None:
    settings = scratch_settings(tmp_path, f"sqlite:///{tmp_path / 'bench.db'}")
    token = prepare(settings, people=3)
    database = Database(settings.database)
    assert {ROWS.name, "deletions"} <= set(inspect(database.engine).get_table_names())
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Subject)) == 3
        caller = find_caller(session, token)
    database.close()
    assert caller is not None
    assert caller.role == Role.COMPLIANCE


def test_people_differ() -> None:
    assert person(1) != person(2)
