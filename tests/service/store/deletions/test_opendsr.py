from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from service.settings import Settings
from service.store.database import Database
from service.store.deletions.opendsr import ANOTHER_BODY, ENDED, REQUEST_STATUS, find_received, find_request
from service.store.deletions.requests import DeletionRequest, OpenDsrReference
from service.store.deletions.views import DeletionView
from service.store.errors import NotFound
from service.store.signing.keys import open_signer
from service.store.states import DeletionStatus
from tests import samples

REFERENCE = OpenDsrReference("acme", uuid.UUID(int=1), bytes)


def request(settings: Settings) -> DeletionRequest:
    lookups = [samples.lookup(settings, 1)]
    return DeletionRequest("acme", "gdpr", lookups, None, "request-1", 0.0, opendsr=REFERENCE, content=b"content")


def store(settings: Settings, database: Database) -> DeletionView:
    with database.writing() as session:
        return samples.store_deletion(session, request(settings), open_signer(settings, database))


def test_a_request_is_found_by_its_caller_only(settings: Settings, database: Database) -> None:
    deletion_id = store(settings, database).deletion.id
    with database.reading() as session:
        assert find_request(session, REFERENCE.subject_request_id, "acme").deletion.id == deletion_id
        for subject_request_id, caller in ((REFERENCE.subject_request_id, "umbrella"), (uuid.UUID(int=2), "acme")):
            with pytest.raises(NotFound):
                find_request(session, subject_request_id, caller)


def test_received_requests_are_found_by_caller_and_id(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    view = store(settings, database)
    others = [replace(REFERENCE, caller="umbrella"), replace(REFERENCE, subject_request_id=uuid.UUID(int=2))]
    with database.reading() as session:
        received = find_received(session, [REFERENCE, *others])
        assert find_received(session, []) == {}
    assert list(received) == [REFERENCE.key]
    repeated = received[REFERENCE.key].answer(request(settings), REFERENCE)
    assert isinstance(repeated, DeletionView)
    assert repeated.deletion.id == view.deletion.id


def test_another_body_is_refused(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    store(settings, database)
    with database.reading() as session:
        received = find_received(session, [REFERENCE])
    changed = replace(request(settings), content=b"another")
    assert str(received[REFERENCE.key].answer(changed, REFERENCE)) == ANOTHER_BODY


@pytest.mark.parametrize("content", [b"content", b"another"])
def test_an_ended_request_is_refused_whatever_it_names(settings: Settings, database: Database, content: bytes) -> None:
    store(settings, database)  # no model holds the person
    with database.reading() as session:
        received = find_received(session, [REFERENCE])
    repeated = replace(request(settings), content=content)
    assert str(received[REFERENCE.key].answer(repeated, REFERENCE)) == ENDED


def test_every_status_has_one_of_opendsr() -> None:
    assert set(REQUEST_STATUS) == set(DeletionStatus)
