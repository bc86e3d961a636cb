from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from sqlalchemy import select

from service.settings import Settings
from service.store.batches.erasure import erase
from service.store.batches.lifecycle import in_batch
from service.store.database import Database
from service.store.deletions.bodies import delete_bodies, mark_body, save_marks
from service.store.deletions.requests import DeletionRequest
from service.store.signing.keys import open_signer
from service.store.tables import Batch, ErasureTrace, Record, RequestBody, Subject
from tests import samples
from tests.service.routes.test_jobs import claim, publish_all


def request_marked(settings: Settings, database: Database, *people: int) -> uuid.UUID | None:
    """Request a deletion whose body is marked, as with a guessable idempotency key; return the body's id."""
    body_id = samples.request_deletion(settings, database, *people).deletion.body_id
    assert body_id is not None
    with database.writing() as session:
        save_marks(session, {body_id: mark_body(b"content", bytes)})
    return body_id


def marked_ids(database: Database) -> Sequence[uuid.UUID]:
    with database.reading() as session:
        return session.scalars(select(RequestBody.id)).all()


def test_marks_of_all_requests_about_an_erased_person_go_with_the_key(settings: Settings, database: Database) -> None:
    first = samples.register_sample(settings, database)
    request_marked(settings, database, 1)
    claimed = claim(database, first)
    request_marked(settings, database, 1, 2)  # waits for the next batch
    other = request_marked(settings, database, 3)
    publish_all(settings, database, claimed)
    assert marked_ids(database) == [other]
    with database.reading() as session:
        assert len(session.scalars(select(ErasureTrace)).all()) == 1


def test_a_person_with_records_elsewhere_stays(settings: Settings, database: Database) -> None:
    models = [samples.register_sample(settings, database) for _ in range(2)]
    request_marked(settings, database, 1)
    claimed = claim(database, models[0])
    with database.writing() as session:
        batch = session.get_one(Batch, claimed.batch_id)
        assert erase(session, batch, in_batch(claimed.model_id, claimed.batch_id)) == set()
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE
        assert len(session.scalars(select(Record).where(Record.model_id == models[0])).all()) == 36


def test_a_request_that_arrives_during_the_erasure_keeps_no_mark(settings: Settings, database: Database) -> None:
    """Its deletion is stored before the subject is gone, but after the erasure began."""
    if database.engine.dialect.name == "sqlite":
        return  # a writer on SQLite is alone
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    claimed = claim(database, model_id)
    body_ids: list[uuid.UUID] = []
    signer = open_signer(settings, database)
    request = DeletionRequest("acme", "gdpr", [samples.lookup(settings, 1)], None, "request-1", 0.0)

    def erase_person() -> None:
        with database.writing() as session:
            batch = session.get_one(Batch, claimed.batch_id)
            body_ids.extend(erase(session, batch, in_batch(claimed.model_id, claimed.batch_id)))
            delete_bodies(session, body_ids)

    thread = threading.Thread(target=erase_person)
    with database.writing() as session:
        view = samples.store_deletion(session, request, signer)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()  # it waits for this transaction
    thread.join()
    assert view.deletion.body_id in body_ids
