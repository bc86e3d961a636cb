"""Bodies of requests, as salted MACs that a repeated request is compared with while the first one is pending.

A mark is deleted when the first deletion of its request ends, or when one of its people is erased otherwise. Without
the salt, nobody can tell what the request named, not even with all keys. Who is held plays no role: the answer to a
repeated request must not reveal it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.store.deletions.requests import DeletionRequest, Mac
from service.store.dialect import chunks
from service.store.tables import Deletion, DeletionSubject, RequestBody

SALT_BYTES = 32


@dataclass(frozen=True)
class BodyMark:
    salt: bytes
    mac: bytes

    def matches(self, content: bytes, mac: Mac) -> bool:
        return hmac.compare_digest(_salted(self.salt, content, mac), self.mac)


def digest_content(kind: str, requests: Sequence[DeletionRequest]) -> bytes:
    """Return a digest of all that the requests name. A person can be guessed from it: never store it."""
    return hashlib.sha256(b"\0".join([kind.encode(), *(request.content for request in requests)])).digest()


def mark_body(content: bytes, mac: Mac) -> BodyMark:
    salt = secrets.token_bytes(SALT_BYTES)
    return BodyMark(salt, _salted(salt, content, mac))


def find_marks(session: Session, body_ids: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, BodyMark]:
    query = select(RequestBody.id, RequestBody.salt, RequestBody.mac)
    return {
        body_id: BodyMark(salt, mac)
        for chunk in chunks(body_ids)
        for body_id, salt, mac in session.execute(query.where(RequestBody.id.in_(chunk)))
    }


def save_marks(session: Session, marks: Mapping[uuid.UUID, BodyMark]) -> None:
    rows = [{"id": body_id, "salt": mark.salt, "mac": mark.mac} for body_id, mark in marks.items()]
    if rows:
        session.execute(insert(RequestBody), rows)


def find_bodies(session: Session, subject_ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
    """Return the ids of all bodies that name one of these subjects."""
    query = select(Deletion.body_id).join(DeletionSubject, DeletionSubject.deletion_id == Deletion.id)
    return {
        body_id
        for chunk in chunks(subject_ids)
        for body_id in session.scalars(query.where(DeletionSubject.subject_id.in_(chunk)))
        if body_id
    }


def forget_bodies(session: Session, deletion_ids: Iterable[uuid.UUID]) -> None:
    """Delete the marks of the requests that these deletions were part of."""
    query = select(Deletion.body_id).distinct()
    ids = (id_ for chunk in chunks(deletion_ids) for id_ in session.scalars(query.where(Deletion.id.in_(chunk))) if id_)
    delete_bodies(session, ids)


def delete_bodies(session: Session, body_ids: Iterable[uuid.UUID]) -> None:
    """Delete marks, in one order: the lines of a bulk share one, and transactions must not deadlock.

    Locks on deletions come before those on marks.
    """
    for chunk in chunks(sorted(set(body_ids))):
        query = select(RequestBody.id).where(RequestBody.id.in_(chunk)).order_by(RequestBody.id).with_for_update()
        ids = session.scalars(query).all()
        if ids:
            session.execute(delete(RequestBody).where(RequestBody.id.in_(ids)))


def _salted(salt: bytes, content: bytes, mac: Mac) -> bytes:
    # The identity key comes last, so that its rotation can wrap the stored value.
    return mac(hmac.digest(salt, content, "sha256"))
