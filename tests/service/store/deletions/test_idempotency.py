from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace

import pytest
from sqlalchemy import select

from service.store.database import Database
from service.store.deletions.bodies import delete_bodies
from service.store.deletions.idempotency import (
    ANOTHER_BODY,
    ANOTHER_KIND,
    BULK,
    DELETION,
    ENDED,
    KeyedAnswer,
    KeyUse,
    Repeated,
    find_answers,
    save_answers,
)
from service.store.errors import KeyInFlight
from service.store.tables import IdempotencyKey, RequestBody

GUESSABLE = KeyUse("acme", "key", DELETION, b"content", bytes)
RANDOM = replace(GUESSABLE, lasting_mac=bytes)
OTHER = replace(GUESSABLE, key="other key")


def save(database: Database, use: KeyUse, *, has_ended: bool = False) -> None:
    with database.writing() as session:
        save_answers(session, [KeyedAnswer(use, "answer", has_ended)])


def repeat(database: Database, use: KeyUse) -> Repeated | None:
    with database.writing() as session:
        return find_answers(session, [use]).get(use)


def hash_again(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def count_marks(database: Database) -> int:
    with database.reading() as session:
        return len(session.scalars(select(RequestBody)).all())


@pytest.mark.parametrize("use", [GUESSABLE, RANDOM], ids=["guessable", "random"])
def test_the_first_answer_is_repeated_for_the_same_content_only(database: Database, use: KeyUse) -> None:
    save(database, use)
    assert repeat(database, use) == "answer"
    assert str(repeat(database, replace(use, content=b"another"))) == ANOTHER_BODY
    assert str(repeat(database, replace(use, kind=BULK))) == ANOTHER_KIND
    assert repeat(database, replace(use, caller="umbrella")) is None
    assert repeat(database, OTHER) is None


@pytest.mark.parametrize("content", [b"content", b"another"])
def test_after_the_end_a_guessable_key_is_refused_whatever_the_content(database: Database, content: bytes) -> None:
    save(database, GUESSABLE)
    with database.writing() as session:
        delete_bodies(session, [GUESSABLE.body_id])
    assert str(repeat(database, replace(GUESSABLE, content=content))) == ENDED
    assert str(repeat(database, replace(GUESSABLE, kind=BULK))) == ANOTHER_KIND


def test_a_request_that_ended_on_arrival_leaves_no_mark(database: Database) -> None:
    save(database, GUESSABLE, has_ended=True)
    assert count_marks(database) == 0
    assert str(repeat(database, GUESSABLE)) == ENDED


def test_a_random_key_is_compared_for_ever_and_needs_no_mark(database: Database) -> None:
    save(database, RANDOM, has_ended=True)
    assert count_marks(database) == 0
    assert repeat(database, RANDOM) == "answer"


def test_the_content_itself_is_not_stored(database: Database) -> None:
    save(database, replace(GUESSABLE, mac=hash_again))
    save(database, replace(RANDOM, key="random", lasting_mac=hash_again, body_id=uuid.uuid4()))
    with database.reading() as session:
        rows = [*session.scalars(select(IdempotencyKey)), *session.scalars(select(RequestBody))]
    assert all(b"content" not in value for row in rows for value in vars(row).values() if isinstance(value, bytes))


def test_nothing_is_read_or_written_without_keys(database: Database) -> None:
    with database.writing() as session:
        assert find_answers(session, []) == {}
        save_answers(session, [])
        assert session.scalars(select(IdempotencyKey)).all() == []


def test_a_key_is_locked_until_its_transaction_ends(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        return  # a writer on SQLite is alone
    with database.writing() as first:
        assert find_answers(first, [GUESSABLE]) == {}
        with database.writing() as second:
            answers = find_answers(second, [GUESSABLE, OTHER])
        assert isinstance(answers[GUESSABLE], KeyInFlight)
        assert OTHER not in answers
    with database.writing() as session:
        assert find_answers(session, [GUESSABLE]) == {}


def test_lock_numbers_fit_into_64_signed_bits_and_differ() -> None:
    numbers = {replace(GUESSABLE, key=str(index)).lock_number for index in range(100)}
    assert len(numbers) == 100
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert GUESSABLE.lock_number == replace(GUESSABLE, content=b"another", kind=BULK).lock_number
