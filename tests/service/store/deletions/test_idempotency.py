from __future__ import annotations

from sqlalchemy import select

from service.store.database import Database
from service.store.deletions.idempotency import KeyedAnswer, KeyUse, find_answers, save_answers
from service.store.errors import IdempotencyMismatch, KeyInFlight
from service.store.tables import IdempotencyKey

USE = KeyUse("acme", "key", b"m" * 32)
OTHER = KeyUse("acme", "other key", b"m" * 32)


def save(database: Database, use: KeyUse, response: str) -> None:
    with database.writing() as session:
        save_answers(session, [KeyedAnswer(use, response)])


def test_the_first_answer_is_found_for_the_same_body_only(database: Database) -> None:
    save(database, USE, "answer")
    changed, stranger = KeyUse("acme", "key", b"o" * 32), KeyUse("umbrella", "key", b"m" * 32)
    with database.writing() as session:
        answers = find_answers(session, [USE, changed, stranger, OTHER])
    assert answers[USE] == "answer"
    assert isinstance(answers[changed], IdempotencyMismatch)
    assert set(answers) == {USE, changed}


def test_nothing_is_read_or_written_without_keys(database: Database) -> None:
    with database.writing() as session:
        assert find_answers(session, []) == {}
        save_answers(session, [])
        assert session.scalars(select(IdempotencyKey)).all() == []


def test_a_key_is_locked_until_its_transaction_ends(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        return  # a writer on SQLite is alone
    with database.writing() as first:
        assert find_answers(first, [USE]) == {}
        with database.writing() as second:
            answers = find_answers(second, [USE, OTHER])
        assert isinstance(answers[USE], KeyInFlight)
        assert OTHER not in answers
    with database.writing() as session:
        assert find_answers(session, [USE]) == {}


def test_lock_numbers_fit_into_64_signed_bits_and_differ() -> None:
    numbers = {KeyUse("acme", str(index), b"").lock_number for index in range(100)}
    assert len(numbers) == 100
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert KeyUse("a", "b", b"1").lock_number == KeyUse("a", "b", b"2").lock_number
