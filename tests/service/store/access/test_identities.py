from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.settings import Settings
from service.store.access.identities import (
    Identity,
    IdentityHasher,
    anonymous_commitment,
    commitment,
    destroy_keys,
    ensure_subjects,
    find_subjects,
    lock_forgotten,
)
from service.store.database import Database
from service.store.tables import Record, Subject
from tests.samples import lookup, register_sample

HASHER = IdentityHasher(bytes(range(32)))


def forget_subjects(session: Session, subject_ids: Sequence[uuid.UUID]) -> int:
    forgotten = lock_forgotten(session, subject_ids)
    destroy_keys(session, forgotten)
    return len(forgotten)


def test_spelling_of_an_email_does_not_matter() -> None:
    lookup = HASHER.lookup(Identity("email", "Ada@Example.org "))
    assert lookup == HASHER.lookup(Identity("email", "ada@example.org"))
    composed, decomposed = "zo\u00eb@example.org", "zoe\u0308@example.org"
    assert HASHER.lookup(Identity("email", composed)) == HASHER.lookup(Identity("email", decomposed))


def test_type_value_and_key_all_matter() -> None:
    lookup = HASHER.lookup(Identity("customer_id", "ada"))
    assert lookup != HASHER.lookup(Identity("customer_id", "Ada"))
    assert lookup != HASHER.lookup(Identity("email", "ada"))
    assert lookup != IdentityHasher(bytes(32)).lookup(Identity("customer_id", "ada"))
    # The separator keeps type and value apart.
    assert HASHER.lookup(Identity("ab", "c")) != HASHER.lookup(Identity("a", "bc"))


def test_a_commitment_needs_the_subjects_own_key() -> None:
    lookup = HASHER.lookup(Identity("email", "ada@example.org"))
    first, second = uuid.uuid4(), uuid.uuid4()
    assert commitment(b"k" * 32, lookup, first) == commitment(b"k" * 32, lookup, first)
    assert commitment(b"k" * 32, lookup, first) != commitment(b"l" * 32, lookup, first)
    assert commitment(b"k" * 32, lookup, first) != commitment(b"k" * 32, lookup, second)
    assert anonymous_commitment() != anonymous_commitment()
    assert len(anonymous_commitment()) == len(commitment(b"k" * 32, lookup, first))


def test_keys_are_chained_oldest_first() -> None:
    old, new = bytes(range(32)), bytes(range(32, 64))
    ada = Identity("email", "ada@example.org")
    chained = IdentityHasher(old, new)
    assert chained.lookup(ada) == IdentityHasher(new).mac(HASHER.lookup(ada))
    assert chained.lookup(ada) != IdentityHasher(new, old).lookup(ada)
    assert len({hasher.check for hasher in (HASHER, IdentityHasher(new), chained)}) == 3


def test_subjects_are_created_once(database: Database) -> None:
    lookups = [HASHER.lookup(Identity("email", f"{number}@example.org")) for number in range(20)]
    with database.writing() as session:
        first = {lookup: subject.id for lookup, subject in ensure_subjects(session, lookups[:15]).items()}
    with database.writing() as session:
        second = {lookup: subject.id for lookup, subject in ensure_subjects(session, lookups[5:] * 2).items()}
    assert len(first) == 15
    assert len(second) == 15
    assert all(first[lookup] == second[lookup] for lookup in lookups[5:15])


def test_a_subject_without_records_loses_its_key(database: Database) -> None:
    lookup = HASHER.lookup(Identity("email", "ada@example.org"))
    with database.writing() as session:
        subject = ensure_subjects(session, [lookup])[lookup]
        assert forget_subjects(session, [subject.id]) == 1
    with database.reading() as session:
        assert find_subjects(session, [lookup]) == {}
        assert session.scalars(select(Subject)).all() == []


def test_one_of_two_workers_that_erase_a_subjects_last_records_at_once_destroys_the_key(
    settings: Settings, database: Database
) -> None:
    models = [register_sample(settings, database) for _ in range(2)]
    with database.reading() as session:
        subject_id = find_subjects(session, [lookup(settings, 0)])[lookup(settings, 0)].id
    both_erased = threading.Barrier(2)

    def erase(model_id: uuid.UUID) -> int:
        with database.writing() as session:
            session.execute(delete(Record).where(Record.model_id == model_id))
            if database.engine.dialect.name == "postgresql":  # SQLite allows one writer at a time
                both_erased.wait(timeout=20)
            return forget_subjects(session, [subject_id])

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(erase, models)) == [0, 1]
    with database.reading() as session:
        assert session.get(Subject, subject_id) is None
