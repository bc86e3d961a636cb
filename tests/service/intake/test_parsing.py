from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace

import pytest
from fastapi.exceptions import RequestValidationError

from service.intake.parsing import RequestParser
from service.schemas.deletions import DeletionCreate
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import Caller
from service.store.deletions.idempotency import BULK, DELETION
from service.store.deletions.views import NamedRecord
from service.store.states import Role
from tests import samples

HASHER = IdentityHasher(b"k" * 32)
PARSER = RequestParser(
    Caller("acme", Role.COMPLIANCE, uuid.uuid4()), HASHER, window_seconds=3.0, request_id="request-1"
)
RANDOM_KEY = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


def body(text: str) -> DeletionCreate:
    return DeletionCreate.model_validate_json(text)


def test_identities_become_keyed_hashes_and_repetitions_are_dropped() -> None:
    people = DeletionCreate.model_validate({"subjects": [samples.person(number) for number in (1, 2, 1)]})
    request = PARSER.parse(people)
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


def test_content_is_what_the_body_names_and_not_its_spelling() -> None:
    spellings = (
        '{"subjects": [{"identity_type": "email", "identity_value": "a@b.c"}]}',
        '{"callback_urls":[],"subjects":[{"identity_value":"A@b.c ","identity_type":"email"}],"regulation":"gdpr"}',
    )
    first, second = (PARSER.parse(body(text)).content for text in spellings)
    assert first == second
    others = (
        spellings[0].replace("a@b.c", "d@b.c"),
        spellings[0].replace('"email"', '"customer_id"'),
        spellings[1].replace('"gdpr"', '"ccpa"'),
        spellings[1].replace("[]", '["https://acme.example/hook"]'),
        spellings[0].replace("{", f'{{"models": ["{RANDOM_KEY}"], ', 1),
        spellings[0].replace("{", f'{{"records": [{{"model": "{RANDOM_KEY}", "record": 7}}], ', 1),
    )
    assert len({first, *(PARSER.parse(body(text)).content for text in others)}) == 7


def test_content_does_not_depend_on_the_identity_key() -> None:
    """A rotation must not make repeated requests look different."""
    text = '{"subjects": [{"identity_type": "email", "identity_value": "a@b.c"}]}'
    other = replace(PARSER, hasher=IdentityHasher(b"k" * 32, b"l" * 32))
    assert PARSER.parse(body(text)).content == other.parse(body(text)).content


def test_keys_are_stored_as_keyed_hashes() -> None:
    request = PARSER.parse(body('{"subjects": [{"identity_type": "email", "identity_value": "a@b.c"}]}'))
    assert PARSER.key_use(None, DELETION, [request]) is None
    use, other = (PARSER.key_use(key, DELETION, [request]) for key in ("order 1", "order 2"))
    assert use is not None
    assert other is not None
    assert (use.caller, use.body_id) == ("acme", request.body_id)
    assert "order" not in use.key
    assert use.key != other.key
    slices = [PARSER.key_use("order 1", BULK, [request], number) for number in range(3)]
    assert len({use.key for use in slices if use}) == 3
    assert slices[0] is not None
    assert slices[0].key == use.key
    assert slices[0].content != use.content


@pytest.mark.parametrize(
    ("key", "is_random"),
    [
        (RANDOM_KEY, True),
        (RANDOM_KEY.upper().replace("-", ""), True),
        (str(uuid.uuid5(uuid.NAMESPACE_DNS, "example.org")), False),
        ("c342dc02-e303-11f1-96db-02fc00000001", False),
        ("order 1", False),
        (f"{RANDOM_KEY}-1", False),
    ],
)
def test_only_a_random_uuid_is_a_secret_under_which_content_can_be_kept(key: str, is_random: bool) -> None:
    request = PARSER.parse(body('{"subjects": [{"identity_type": "email", "identity_value": "a@b.c"}]}'))
    use = PARSER.key_use(key, DELETION, [request])
    assert use is not None
    assert (use.lasting_mac is not None) is is_random
    if use.lasting_mac is not None:
        assert use.lasting_mac(b"content") not in (b"content", hashlib.sha256(b"content").digest())


@pytest.mark.parametrize("key", ["ada@example.org", hashlib.sha256(b"ada@example.org").hexdigest()])
def test_a_key_that_contains_an_identity_is_refused(key: str) -> None:
    person = body('{"subjects": [{"identity_type": "email", "identity_value": "Ada@example.org"}]}')
    with pytest.raises(RequestValidationError) as refusal:
        replace(PARSER, key=key).parse(person)
    assert "ada" not in str(refusal.value.errors()).lower()
    assert replace(PARSER, key=RANDOM_KEY).parse(person).lookups
