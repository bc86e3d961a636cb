"""Identities and subjects. An identity is turned into a keyed hash on arrival; nothing else sees the raw value."""

from __future__ import annotations

import hmac
import secrets
import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from service.store.dialect import chunks, insert
from service.store.tables import Record, Subject


@dataclass(frozen=True)
class Identity:
    """Identifier of a person in an outside system."""

    type: str
    value: str


class IdentityHasher:
    """HMAC-SHA-256 with the identity key. Without the key, nobody can test guessed e-mail addresses."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def lookup(self, identity: Identity) -> bytes:
        value = unicodedata.normalize("NFC", identity.value).strip()
        if identity.type == "email":
            value = value.casefold()
        return self.mac(f"{identity.type}\0{value}".encode())

    def mac(self, message: bytes) -> bytes:
        return hmac.digest(self._key, message, "sha256")


def commitment(subject_key: bytes, lookup: bytes) -> str:
    """Return the subject's name in log and certificates. Once the subject's key is destroyed, it is a random number."""
    return hmac.digest(subject_key, lookup, "sha256").hex()


def anonymous_commitment(lookup: bytes) -> str:
    """Return a commitment under a key that is discarded at once, for a person no model holds."""
    return commitment(secrets.token_bytes(32), lookup)


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


def forget_subjects(session: Session, subject_ids: Iterable[uuid.UUID]) -> int:
    """Destroy the keys of subjects without any record, so that their commitments cannot be linked. Return their number.

    The rows are locked first, in one order: when two workers erase a subject's last records in two models at once, the
    second sees what the first did. Otherwise each would leave the key to the other.
    """
    ids = sorted(subject_ids)
    for chunk in chunks(ids):
        session.execute(
            select(Subject.id).where(Subject.id.in_(chunk)).order_by(Subject.id).with_for_update(key_share=True)
        )
    return sum(_destroy_keys(session, chunk) for chunk in chunks(ids))


def _destroy_keys(session: Session, ids: Sequence[uuid.UUID]) -> int:
    destroyed = session.execute(
        delete(Subject)
        .where(Subject.id.in_(ids), ~exists().where(Record.subject_id == Subject.id))
        .returning(Subject.id)
        .execution_options(synchronize_session=False)
    )
    return len(destroyed.all())
