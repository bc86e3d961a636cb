from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect, select, text

from service.settings import Settings
from service.store import migrate
from service.store.database import Database
from service.store.deletions import deadlines
from service.store.deletions.requests import DeletionRequest, OpenDsrReference
from service.store.erasure_traces import TraceClearer
from service.store.models.registry import current_version, find_model
from service.store.signing.keys import open_signer
from service.store.tables import Deletion, DeletionTarget, IdempotencyKey
from tests.database_files import count_found, read_files
from tests.samples import register_sample, request_deletion, store_deletion


def test_up_down_and_up_again(database: Database) -> None:
    migrate.check(database)
    assert migrate.is_current(database)
    migrate.downgrade(database)
    assert not migrate.is_current(database)
    assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
    migrate.upgrade(database)
    migrate.check(database)


def test_a_model_keeps_its_policy(settings: Settings, database: Database) -> None:
    """Downgrade to the first tables and upgrade again, with a model that versions and records refer to."""
    model_id = register_sample(settings, database, epsilon=1e-5)
    migrate._run(database, lambda config: command.downgrade(config, "0001"))
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT policy_epsilon FROM models")).scalar_one() == 1e-5
    migrate.upgrade(database)
    migrate.check(database)
    with database.reading() as session:
        policy = find_model(session, model_id).policy
        assert current_version(session, model_id).record_count == 40
    assert policy == {"epsilon": 1e-5, "level": "proved", "rungs": ["influence", "newton"], "seconds": None}


def test_a_deletion_gets_its_deadline(settings: Settings, database: Database) -> None:
    register_sample(settings, database)
    deletion = request_deletion(settings, database, 1).deletion
    migrate._run(database, lambda config: command.downgrade(config, "0002"))
    migrate.upgrade(database)
    with database.reading() as session:
        migrated = session.get_one(Deletion, deletion.id)
        assert session.scalars(select(DeletionTarget.received_at)).all() == [deletion.received_at]
    assert migrated.due_at == deletion.due_at == deadlines.due("gdpr", deletion.received_at)


def test_callback_urls_move_with_their_request(settings: Settings, database: Database) -> None:
    urls, reference = ["https://one.example/"], OpenDsrReference("acme", uuid.uuid4(), bytes)
    request = DeletionRequest(
        "acme", "gdpr", [b"l" * 32], None, "request-1", 0.0, callback_urls=urls, opendsr=reference
    )
    signer = open_signer(settings, database)
    with database.writing() as session:
        view = store_deletion(session, request, signer)
    without_callbacks = request_deletion(settings, database, 1).deletion
    migrate._run(database, lambda config: command.downgrade(config, "0008"))
    with database.engine.connect() as connection:
        assert "one.example" in str(connection.execute(text("SELECT callback_urls FROM opendsr_requests")).scalar_one())
    migrate.upgrade(database)
    migrate.check(database)
    with database.reading() as session:
        assert session.get_one(Deletion, view.deletion.id).callback_urls == ["https://one.example/"]
        assert session.get_one(Deletion, without_callbacks.id).callback_urls is None


def test_idempotency_keys_stay_and_macs_of_their_bodies_go(database: Database) -> None:
    migrate._run(database, lambda config: command.downgrade(config, "0012"))
    insertion = text(
        "INSERT INTO idempotency_keys (caller, key, body_mac, response) VALUES ('acme', :key, :mac, :answer)"
    )
    mac = bytes(range(32))
    with database.write_engine.begin() as connection:
        for key, answer in (("one", '{"id":"..."}'), ("many", '{"line":1,"status":201}')):
            connection.execute(insertion, {"key": key, "mac": mac, "answer": answer})
    migrate.upgrade(database)
    migrate.check(database)
    with database.reading() as session:
        rows = session.scalars(select(IdempotencyKey)).all()
    assert {row.key: row.kind for row in rows} == {"one": "deletion", "many": "bulk"}
    assert {row.body_mac for row in rows} == {None}
    assert len({row.body_id for row in rows}) == 2
    assert TraceClearer(database).clear() == 1
    assert count_found(read_files(database), [mac]) == 0


def test_an_up_to_date_database_is_left_unchanged(database: Database) -> None:
    migrate.upgrade(database)
    migrate.check(database)


def test_two_processes_may_start_on_an_empty_database(tmp_path: Path) -> None:
    databases = [Database(f"sqlite:///{tmp_path}/new.db") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(migrate.upgrade, databases))
    migrate.check(databases[0])
    for database in databases:
        database.close()


def test_earlier_deletions_are_binding(settings: Settings, database: Database) -> None:
    """Their callers were shown everything at once."""
    register_sample(settings, database)
    deletion = request_deletion(settings, database, 1).deletion
    migrate._run(database, lambda config: command.downgrade(config, "0016"))
    migrate.upgrade(database)
    with database.reading() as session:
        assert session.get_one(Deletion, deletion.id).binding_at == deletion.received_at


def test_pending_absences_are_not_lost_by_a_downgrade(settings: Settings, database: Database) -> None:
    patient = settings.model_copy(update={"batch_window_seconds": 3600.0})
    request_deletion(patient, database, 1)
    with pytest.raises(RuntimeError, match="let the sweep run"):
        migrate.downgrade(database)
