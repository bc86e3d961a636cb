from __future__ import annotations

import base64
import hmac
import uuid

import pytest
from sqlalchemy import select

from service.settings import ConfigurationError, Settings, new_key
from service.store.access import identity_keys
from service.store.access.identities import Identity, IdentityHasher, find_subjects
from service.store.access.identity_keys import add_key, find_hasher, open_hasher
from service.store.database import Database
from service.store.deletions.bodies import find_marks, mark_body, save_marks
from service.store.deletions.idempotency import DELETION, KeyedAnswer, KeyUse, find_answers, save_answers
from service.store.errors import SecretMismatch
from service.store.tables import AuditEntry, ErasureTrace, Subject
from tests import samples

ADA = Identity("email", "ada@example.org")


def with_keys(settings: Settings, *keys: str) -> Settings:
    return settings.model_copy(update={"identity_key": type(settings.identity_key)(",".join(keys))})  # type: ignore[call-arg, misc]


@pytest.fixture
def old_key(settings: Settings) -> str:
    assert settings.identity_key is not None
    return settings.identity_key.get_secret_value()


def rotate(settings: Settings, database: Database, key: str) -> int:
    old = open_hasher(settings, database)
    with database.writing() as session:
        return add_key(session, old, base64.b64decode(key), actor="operator")


def test_another_key_is_refused_at_the_start(settings: Settings, database: Database) -> None:
    open_hasher(settings, database)
    with pytest.raises(ConfigurationError, match="LETHE_IDENTITY_KEY is not the secret"):
        open_hasher(with_keys(settings, new_key()), Database(settings.database))


def test_after_a_rotation_people_are_found_through_all_keys(
    settings: Settings, database: Database, old_key: str
) -> None:
    samples.register_sample(settings, database)
    old, added = open_hasher(settings, database), new_key()
    extended = with_keys(settings, old_key, added)
    assert open_hasher(extended, database).check == old.check  # the new list works before the rotation, too
    assert rotate(settings, database, added) == samples.PEOPLE
    new = open_hasher(extended, database)
    person = Identity("email", "person-3@example.org")
    with database.reading() as session:
        assert find_subjects(session, [old.lookup(person)]) == {}
        assert len(find_subjects(session, [new.lookup(person)])) == 1
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE
    for keys in ([old_key], [added], [added, old_key]):
        with pytest.raises(ConfigurationError):
            open_hasher(with_keys(settings, *keys), Database(settings.database))


def test_the_old_key_alone_no_longer_confirms_a_guess(settings: Settings, database: Database, old_key: str) -> None:
    samples.register_sample(settings, database)
    open_hasher(settings, database)
    rotate(settings, database, new_key())
    guess = Identity("email", "person-3@example.org").canonical.encode()
    with database.reading() as session:
        lookups = session.scalars(select(Subject.lookup)).all()
    assert hmac.digest(base64.b64decode(old_key), guess, "sha256") not in lookups


def test_keys_and_marks_of_pending_requests_survive_a_rotation(
    settings: Settings, database: Database, old_key: str
) -> None:
    old, added = open_hasher(settings, database), new_key()
    key = b"idempotency\0some key"
    use = KeyUse("acme", old.mac(key).hex(), DELETION, b"content", old.mac)
    with database.writing() as session:
        save_answers(session, [KeyedAnswer(use, "answer", has_ended=False)])
    rotate(settings, database, added)
    new = open_hasher(with_keys(settings, old_key, added), database)
    repeated = KeyUse("acme", new.mac(key).hex(), DELETION, b"content", new.mac)
    with database.writing() as session:
        assert find_answers(session, [repeated]) == {repeated: "answer"}


def test_a_rotation_is_logged_and_leaves_a_trace_to_be_cleared(settings: Settings, database: Database) -> None:
    open_hasher(settings, database)
    rotate(settings, database, new_key())
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "identity_key.rotated")).one()
        assert entry.details == {"subjects": 0}
        assert len(session.scalars(select(ErasureTrace)).all()) == 1


def test_a_rotation_from_other_keys_changes_nothing(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    open_hasher(settings, database)
    with database.reading() as session:
        before = set(session.scalars(select(Subject.lookup)))
    with pytest.raises(SecretMismatch), database.writing() as session:
        add_key(session, IdentityHasher(b"other key".ljust(32)), bytes(range(32)), actor="operator")
    with database.reading() as session:
        assert set(session.scalars(select(Subject.lookup))) == before


def test_tables_larger_than_a_chunk_are_wrapped_completely(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_keys, "CHUNK_SIZE", 3)
    old = open_hasher(settings, database)
    marks = {uuid.uuid4(): mark_body(b"content", old.mac) for _ in range(10)}
    with database.writing() as session:
        save_marks(session, marks)
    added = bytes(range(32))
    with database.writing() as session:
        add_key(session, old, added, actor="operator")
    keys = [*settings.identity_keys(), added]
    with database.reading() as session:
        new = find_hasher(session, keys)
        wrapped = find_marks(session, marks)
    assert len(wrapped) == 10
    assert all(mark.matches(b"content", new.mac) for mark in wrapped.values())
