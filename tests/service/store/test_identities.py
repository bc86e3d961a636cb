from __future__ import annotations

from sqlalchemy import select

from service.store.database import Database
from service.store.identities import (
    Identity,
    IdentityHasher,
    anonymous_commitment,
    commitment,
    ensure_subjects,
    find_subjects,
    forget_subjects,
)
from service.store.tables import Subject

HASHER = IdentityHasher(bytes(range(32)))


def test_spelling_of_an_email_does_not_matter() -> None:
    one = HASHER.lookup(Identity("email", "Ada@Example.org "))
    assert one == HASHER.lookup(Identity("email", "ada@example.org"))
    composed, decomposed = "zo\u00eb@example.org", "zoe\u0308@example.org"
    assert HASHER.lookup(Identity("email", composed)) == HASHER.lookup(Identity("email", decomposed))


def test_type_value_and_key_all_matter() -> None:
    one = HASHER.lookup(Identity("customer_id", "ada"))
    assert one != HASHER.lookup(Identity("customer_id", "Ada"))
    assert one != HASHER.lookup(Identity("email", "ada"))
    assert one != IdentityHasher(bytes(32)).lookup(Identity("customer_id", "ada"))
    # The separator keeps type and value apart.
    assert HASHER.lookup(Identity("ab", "c")) != HASHER.lookup(Identity("a", "bc"))


def test_a_commitment_needs_the_subjects_own_key() -> None:
    lookup = HASHER.lookup(Identity("email", "ada@example.org"))
    assert commitment(b"k" * 32, lookup) == commitment(b"k" * 32, lookup)
    assert commitment(b"k" * 32, lookup) != commitment(b"l" * 32, lookup)
    assert anonymous_commitment(lookup) != anonymous_commitment(lookup)


def test_subjects_are_made_once(database: Database) -> None:
    lookups = [HASHER.lookup(Identity("email", f"{number}@example.org")) for number in range(20)]
    with database.writing() as session:
        first = {lookup: subject.id for lookup, subject in ensure_subjects(session, lookups[:15]).items()}
    with database.writing() as session:
        again = {lookup: subject.id for lookup, subject in ensure_subjects(session, lookups[5:] * 2).items()}
    assert len(first) == 15
    assert len(again) == 15
    assert all(first[lookup] == again[lookup] for lookup in lookups[5:15])


def test_a_subject_without_records_loses_its_key(database: Database) -> None:
    lookup = HASHER.lookup(Identity("email", "ada@example.org"))
    with database.writing() as session:
        subject = ensure_subjects(session, [lookup])[lookup]
        assert forget_subjects(session, [subject.id]) == 1
    with database.reading() as session:
        assert find_subjects(session, [lookup]) == {}
        assert session.scalars(select(Subject)).all() == []
