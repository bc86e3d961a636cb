from __future__ import annotations

import uuid

from service.intake.parsing import RequestParser, canonical_body
from service.schemas.deletions import DeletionCreate
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import Caller
from service.store.deletions.views import NamedRecord
from service.store.states import Role
from tests import samples

HASHER = IdentityHasher(b"k" * 32)
PARSER = RequestParser(
    Caller("acme", Role.COMPLIANCE, uuid.uuid4()), HASHER, window_seconds=3.0, request_id="request-1"
)


def test_identities_become_keyed_hashes_and_repetitions_are_dropped() -> None:
    body = DeletionCreate(subjects=[samples.person(1), samples.person(2), samples.person(1)])  # type: ignore[list-item]
    request = PARSER.parse(body)
    assert request.lookups == [HASHER.lookup(Identity("email", f"person-{number}@example.org")) for number in (1, 2)]
    assert (request.caller, request.request_id, request.window_seconds) == ("acme", "request-1", 3.0)
    assert request.model_ids is None
    assert "person-1" not in repr(request)


def test_records_are_named_by_model_and_row() -> None:
    model_id = uuid.uuid4()
    record = {"model": str(model_id), "record": 7}
    assert PARSER.parse(DeletionCreate.model_validate({"records": [record, record]})).records == [
        NamedRecord(model_id, 7)
    ]


def test_a_key_is_bound_to_the_request_and_not_to_its_spelling() -> None:
    spellings = (
        '{"subjects": [{"identity_type": "email", "identity_value": "a@b.c"}]}',
        '{"callback_urls":[],"subjects":[{"identity_value":"a@b.c","identity_type":"email"}],"regulation":"gdpr"}',
    )
    first, second = (canonical_body(DeletionCreate.model_validate_json(text)) for text in spellings)
    assert first == second
    assert b"records" not in first
    other = DeletionCreate.model_validate_json(spellings[0].replace("a@b.c", "d@b.c"))
    assert canonical_body(other) != first


def test_keys_are_stored_as_keyed_hashes() -> None:
    assert PARSER.key_use(None, b"body") is None
    use = PARSER.key_use("ada@example.org", b"body")
    assert use is not None
    assert use.caller == "acme"
    assert use.body_mac == HASHER.mac(b"body")
    assert "ada" not in use.key
    assert use != PARSER.key_use("bob@example.org", b"body")
