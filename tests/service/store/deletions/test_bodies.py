from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import select

from service.settings import Settings
from service.store.access.identities import find_subjects
from service.store.database import Database
from service.store.deletions.bodies import (
    delete_bodies,
    digest_content,
    find_bodies,
    find_marks,
    forget_bodies,
    mark_body,
    save_marks,
)
from service.store.deletions.interventions import cancel
from service.store.deletions.requests import DeletionRequest
from service.store.tables import RequestBody
from tests import samples


def request(content: bytes) -> DeletionRequest:
    return DeletionRequest("acme", "gdpr", [], None, "request-1", 0.0, content=content)


def marked_ids(database: Database) -> Sequence[uuid.UUID]:
    with database.reading() as session:
        return session.scalars(select(RequestBody.id)).all()


def mark(database: Database, *body_ids: uuid.UUID | None) -> None:
    with database.writing() as session:
        save_marks(session, {body_id: mark_body(b"content", bytes) for body_id in body_ids if body_id})


def test_kind_order_and_content_of_the_requests_matter() -> None:
    first, second = request(b"first"), request(b"second")
    digests = {
        digest_content(kind, requests)
        for kind in ("deletion", "bulk")
        for requests in ([first], [second], [first, second], [second, first])
    }
    assert len(digests) == 8
    assert digest_content("bulk", [first]) == digest_content("bulk", [request(b"first")])


def test_a_mark_has_its_own_salt_and_needs_the_key() -> None:
    first, second = mark_body(b"content", bytes), mark_body(b"content", bytes)
    assert first != second
    assert first.matches(b"content", bytes)
    assert not first.matches(b"another", bytes)
    assert not first.matches(b"content", lambda digest: digest[::-1])


def test_marks_are_found_as_they_were_stored(database: Database) -> None:
    body_id, stored = uuid.uuid4(), mark_body(b"content", bytes)
    with database.writing() as session:
        save_marks(session, {body_id: stored})
    with database.reading() as session:
        assert find_marks(session, [body_id, uuid.uuid4()]) == {body_id: stored}
    with database.writing() as session:
        delete_bodies(session, [body_id, uuid.uuid4()])
        delete_bodies(session, [])
    assert marked_ids(database) == []


def test_a_subject_leads_to_the_bodies_of_all_requests_that_name_it(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    views = [samples.request_deletion(settings, database, *people) for people in ((1,), (1, 2), (2,), (99,))]
    with database.reading() as session:
        subject = find_subjects(session, [samples.lookup(settings, 1)])[samples.lookup(settings, 1)]
        assert find_bodies(session, [subject.id]) == {view.deletion.body_id for view in views[:2]}


def test_marks_go_with_the_end_of_their_request(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    first, second, third = (samples.request_deletion(settings, database, person).deletion for person in (1, 2, 3))
    mark(database, first.body_id, second.body_id, third.body_id)
    with database.writing() as session:
        cancel(session, first.id, None, "operator")
    with database.writing() as session:
        forget_bodies(session, [second.id, uuid.uuid4()])
    assert marked_ids(database) == [third.body_id]
