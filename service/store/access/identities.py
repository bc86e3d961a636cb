"""Identities and subjects. An identity is turned into a keyed hash on arrival; nothing else sees the raw value."""

from __future__ import annotations

import hmac
import secrets
import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from service.store.access.secret_checks import IDENTITY_KEY, CheckValue, check_message
from service.store.dialect import chunks, insert
from service.store.tables import Record, Subject


@dataclass(frozen=True)
class Identity:
    """Identifier of a person in an outside system."""

    type: str
    value: str

    @property
    def canonical(self) -> str:
        """Return type and value in the one spelling under which the person is found."""
        value = unicodedata.normalize("NFC", self.value).strip()
        return f"{self.type}\0{value.casefold() if self.type == 'email' else value}"


class IdentityHasher:
    """HMAC-SHA-256 through the identity keys, oldest first. Without all of them, nobody can test a guessed address.

    A rotation adds a key. It wraps what is stored in another HMAC, since the identities themselves are not stored.
    """

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys

    def lookup(self, identity: Identity) -> bytes:
        return self.mac(identity.canonical.encode())

    def mac(self, message: bytes) -> bytes:
        return reduce(lambda digest, key: hmac.digest(key, digest, "sha256"), self._keys, message)

    @property
    def key_count(self) -> int:
        return len(self._keys)

    def extended(self, key: bytes) -> IdentityHasher:
        """Return the hasher after a rotation that adds this key."""
        return IdentityHasher(*self._keys, key)

    @property
    def check(self) -> CheckValue:
        """Return the check value of the keys."""
        return CheckValue(IDENTITY_KEY, self.mac(check_message(IDENTITY_KEY)))


def commitment(subject_key: bytes, lookup: bytes, deletion_id: uuid.UUID) -> str:
    """Return the subject's name in one deletion, its log entries and its certificates.

    Two deletions of the same subject cannot be linked by it. Once the subject's key is destroyed, it is a random
    number.
    """
    return hmac.digest(subject_key, lookup + deletion_id.bytes, "sha256").hex()


def anonymous_commitment() -> str:
    """Return a random number as the commitment of a person whom no model holds."""
    return secrets.token_hex(32)


def find_subjects(session: Session, lookups: Iterable[bytes]) -> Mapping[bytes, Subject]:
    return {
        subject.lookup: subject
        for chunk in chunks(lookups)
        for subject in session.scalars(select(Subject).where(Subject.lookup.in_(chunk)))
    }


def ensure_subjects(session: Session, lookups: Iterable[bytes]) -> Mapping[bytes, Subject]:
    """Return the subjects of these lookups, created where missing. Concurrent registrations do not collide."""
    ordered = sorted(set(lookups))  # one order for all transactions: concurrent inserts cannot deadlock
    for chunk in chunks(ordered):
        rows = [{"id": uuid.uuid4(), "lookup": lookup, "key": secrets.token_bytes(32)} for lookup in chunk]
        session.execute(insert(session, Subject).values(rows).on_conflict_do_nothing(index_elements=["lookup"]))
    return find_subjects(session, ordered)


def lock_forgotten(session: Session, subject_ids: Iterable[uuid.UUID]) -> Sequence[uuid.UUID]:
    """Return those of the subjects that have no record left, locked against new deletions that name them.

    All rows are locked first, in one order: when two workers erase a subject's last records in two models at once, the
    second sees what the first did. Otherwise each would leave the key to the other.
    """
    ids = sorted(subject_ids)
    by_id = select(Subject.id).order_by(Subject.id)
    for chunk in chunks(ids):
        session.execute(by_id.where(Subject.id.in_(chunk)).with_for_update(key_share=True))
    without_record = by_id.where(~exists().where(Record.subject_id == Subject.id))
    # The stronger lock waits for the deletions that are being received.
    return [
        subject_id
        for chunk in chunks(ids)
        for subject_id in session.scalars(without_record.where(Subject.id.in_(chunk)).with_for_update())
    ]


def destroy_keys(session: Session, subject_ids: Iterable[uuid.UUID]) -> None:
    """Delete locked subjects and their keys, so that their commitments cannot be linked."""
    for chunk in chunks(subject_ids):
        session.execute(delete(Subject).where(Subject.id.in_(chunk)).execution_options(synchronize_session=False))
