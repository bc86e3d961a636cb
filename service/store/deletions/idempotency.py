"""Idempotency keys: scoped to the caller, kept for ever. The first answer is repeated byte for byte.

A random key (UUID of version 4) is a secret of the caller, of which only a keyed hash is stored. So the MAC of the body
under the key itself reveals nothing, and the key can be repeated for ever. With any other key, the body is compared
while the request is pending (bodies.py). Afterwards every repetition is refused alike.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import insert, select, tuple_
from sqlalchemy.orm import Session

from service.store.deletions.bodies import BodyMark, find_marks, mark_body, save_marks
from service.store.deletions.requests import Mac
from service.store.dialect import try_locks
from service.store.errors import IdempotencyMismatch, KeyInFlight
from service.store.tables import IdempotencyKey

DELETION, BULK = "deletion", "bulk"
"""Kinds of requests. A key is used for one of them."""

ANOTHER_BODY = "this Idempotency-Key was used before with another body; use a new key"
ANOTHER_KIND = "this Idempotency-Key was used before for another kind of request; use a new key"
ENDED = (
    "this Idempotency-Key was used for a request that has ended, so the bodies can no longer be compared; use a new "
    "key (a random UUID can be repeated for ever)"
)
STILL_IN_FLIGHT = "a request with this Idempotency-Key is still being processed; retry with the same key"
Repeated = str | IdempotencyMismatch | KeyInFlight
"""First answer to a key, or the reason for refusing the request."""


@dataclass(frozen=True)
class KeyUse:
    """The use of a key by one request. The key itself is a keyed hash of what the caller sent."""

    caller: str
    key: str
    kind: str
    content: bytes
    """Digest of what the request names. Never stored."""
    mac: Mac = field(compare=False)
    """Keyed hash under the identity key."""
    lasting_mac: Mac | None = field(compare=False, default=None)
    """Keyed hash under the caller's own key, if that is random."""
    body_id: uuid.UUID = field(compare=False, default_factory=uuid.uuid4)

    @property
    def lock_number(self) -> int:
        """64 bits for an advisory lock. Two keys with the same number merely wait for each other."""
        digest = hashlib.sha256(f"{self.caller}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


@dataclass(frozen=True)
class KeyedAnswer:
    use: KeyUse
    response: str
    has_ended: bool
    """Whether one of its deletions was complete on arrival."""


def find_answers(session: Session, uses: Collection[KeyUse]) -> Mapping[KeyUse, Repeated]:
    """Return, for each use that must not be processed, the first answer or the reason for refusing it.

    The keys of all other uses are locked until this transaction ends, so that a crash leaves no key stuck. On SQLite
    every writer is alone already.
    """
    if not uses:
        return {}
    locked_elsewhere = try_locks(session, (use.lock_number for use in uses))
    in_flight = {use: KeyInFlight(STILL_IN_FLIGHT) for use in uses if use.lock_number in locked_elsewhere}
    # Read after the locks were taken: a transaction that held one before has committed.
    return {**in_flight, **_repeat_answers(session, uses)}


def save_answers(session: Session, answers: Sequence[KeyedAnswer]) -> None:
    rows = [_row(answer) for answer in answers]
    if rows:
        session.execute(insert(IdempotencyKey), rows)
    marked = [answer.use for answer in answers if answer.use.lasting_mac is None and not answer.has_ended]
    save_marks(session, {use.body_id: mark_body(use.content, use.mac) for use in marked})


def _row(answer: KeyedAnswer) -> dict[str, str | bytes | uuid.UUID | None]:
    use = answer.use
    return {
        "caller": use.caller,
        "key": use.key,
        "kind": use.kind,
        "body_id": use.body_id,
        "body_mac": use.lasting_mac(use.content) if use.lasting_mac else None,
        "response": answer.response,
    }


def _repeat_answers(session: Session, uses: Collection[KeyUse]) -> Mapping[KeyUse, Repeated]:
    is_used = tuple_(IdempotencyKey.caller, IdempotencyKey.key).in_([(use.caller, use.key) for use in uses])
    rows = {(row.caller, row.key): row for row in session.scalars(select(IdempotencyKey).where(is_used))}
    marks = find_marks(session, [row.body_id for row in rows.values()])
    return {
        use: _repeat_answer(row, marks.get(row.body_id), use)
        for use in uses
        if (row := rows.get((use.caller, use.key)))
    }


def _repeat_answer(row: IdempotencyKey, mark: BodyMark | None, use: KeyUse) -> str | IdempotencyMismatch:
    if row.kind != use.kind:
        return IdempotencyMismatch(ANOTHER_KIND)
    if row.body_mac is not None and use.lasting_mac is not None:
        is_same = hmac.compare_digest(row.body_mac, use.lasting_mac(use.content))
    elif mark is not None:
        is_same = mark.matches(use.content, use.mac)
    else:
        return IdempotencyMismatch(ENDED)
    return row.response if is_same else IdempotencyMismatch(ANOTHER_BODY)
