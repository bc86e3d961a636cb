from __future__ import annotations

import threading

import pytest

from service.settings import ConfigurationError
from service.store.access.secret_checks import (
    IDENTITY_KEY,
    OPENDSR_KEY,
    CheckValue,
    check_message,
    ensure_match,
    find_mismatch,
    find_value,
    require_match,
)
from service.store.database import Database
from service.store.errors import SecretMismatch
from service.store.tables import SecretCheck

FIRST, OTHER = CheckValue(IDENTITY_KEY, b"1" * 32), CheckValue(IDENTITY_KEY, b"2" * 32)


def test_the_first_start_stores_the_value_and_another_secret_is_refused(database: Database) -> None:
    for _ in range(2):
        ensure_match(database, FIRST)
    with pytest.raises(ConfigurationError, match=r"LETHE_IDENTITY_KEY is not the secret .* restart"):
        ensure_match(database, OTHER)
    ensure_match(database, CheckValue(OPENDSR_KEY, b"3" * 32))  # each secret has its own value
    with database.reading() as session:
        assert find_value(session, IDENTITY_KEY) == FIRST.value


def test_inside_a_transaction_another_secret_is_refused(database: Database) -> None:
    with database.writing() as session, pytest.raises(SecretMismatch):
        require_match(session, FIRST)  # nothing is stored yet
    ensure_match(database, FIRST)
    with database.writing() as session:
        require_match(session, FIRST)
        assert find_mismatch(session, FIRST) is None
        with pytest.raises(SecretMismatch, match="LETHE_IDENTITY_KEY"):
            require_match(session, OTHER)


def test_a_value_cannot_change_under_a_transaction_that_relies_on_it(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        return  # a writer on SQLite is alone
    ensure_match(database, FIRST)
    committed = threading.Event()

    def change() -> None:
        with database.writing() as session:
            session.get_one(SecretCheck, IDENTITY_KEY, with_for_update=True).value = OTHER.value
        committed.set()

    thread = threading.Thread(target=change)
    with database.writing() as session:
        require_match(session, FIRST)
        thread.start()
        assert not committed.wait(0.2)
        require_match(session, FIRST)
    thread.join()
    assert committed.is_set()


def test_secrets_have_different_messages() -> None:
    assert check_message(IDENTITY_KEY) != check_message(OPENDSR_KEY)
