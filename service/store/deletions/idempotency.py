"""Idempotency keys: scoped to the caller, kept for ever. The first answer is repeated byte for byte."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select, tuple_
from sqlalchemy.orm import Session

from service.store.dialect import try_locks
from service.store.errors import IdempotencyMismatch, KeyInFlight
from service.store.tables import IdempotencyKey

ANOTHER_BODY = "this Idempotency-Key was used before with another body; use a new key"
STILL_IN_FLIGHT = "a request with this Idempotency-Key is still being processed; retry with the same key"


@dataclass(frozen=True)
class KeyUse:
    """The use of a key by one request. The key itself is a keyed hash of what the caller sent."""

    caller: str
    key: str
    body_mac: bytes

    @property
    def lock_number(self) -> int:
        """64 bits for an advisory lock. Two keys with the same number merely wait for each other."""
        digest = hashlib.sha256(f"{self.caller}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


@dataclass(frozen=True)
class KeyedAnswer:
    use: KeyUse
    response: str
    deletion_id: uuid.UUID | None = None


def find_answers(session: Session, uses: Sequence[KeyUse]) -> Mapping[KeyUse, str | IdempotencyMismatch | KeyInFlight]:
    """Return, for each use that must not be processed, the first answer or the reason for refusing it.

    The keys of all other uses are locked until this transaction ends, so that a crash leaves no key stuck. On SQLite
    every writer is alone already.
    """
    if not uses:
        return {}
    locked_elsewhere = try_locks(session, (use.lock_number for use in uses))
    answers: dict[KeyUse, str | IdempotencyMismatch | KeyInFlight] = {
        use: KeyInFlight(STILL_IN_FLIGHT) for use in uses if use.lock_number in locked_elsewhere
    }
    is_used = tuple_(IdempotencyKey.caller, IdempotencyKey.key).in_([(use.caller, use.key) for use in uses])
    # Read after the locks were taken: a transaction that held one before has committed.
    query = select(IdempotencyKey.caller, IdempotencyKey.key, IdempotencyKey.body_mac, IdempotencyKey.response)
    rows = {(caller, key): (mac, response) for caller, key, mac, response in session.execute(query.where(is_used))}
    for use in uses:
        if row := rows.get((use.caller, use.key)):
            body_mac, response = row
            is_same = hmac.compare_digest(body_mac, use.body_mac)
            answers[use] = response if is_same else IdempotencyMismatch(ANOTHER_BODY)
    return answers


def save_answers(session: Session, answers: Sequence[KeyedAnswer]) -> None:
    rows = [
        {
            "caller": answer.use.caller,
            "key": answer.use.key,
            "body_mac": answer.use.body_mac,
            "deletion_id": answer.deletion_id,
            "response": answer.response,
        }
        for answer in answers
    ]
    if rows:
        session.execute(insert(IdempotencyKey), rows)
