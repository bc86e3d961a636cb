"""Idempotency keys: scoped to the caller, kept for ever, the first answer repeated byte for byte."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select, text, tuple_
from sqlalchemy.orm import Session

from service.store.errors import IdempotencyMismatch, KeyInFlight
from service.store.tables import IdempotencyKey

ANOTHER_BODY = "this Idempotency-Key was used before with another body; use a fresh key"
STILL_IN_FLIGHT = "a request with this Idempotency-Key is still being answered; send it again, with the same key"

TRY_LOCKS = text("SELECT n, pg_try_advisory_xact_lock(n) FROM unnest(CAST(:numbers AS bigint[])) AS n")


@dataclass(frozen=True)
class KeyUse:
    """A key as one request used it."""

    caller: str
    key: str
    body_mac: bytes

    @property
    def lock_number(self) -> int:
        """64 bits for an advisory lock. Two keys with one number only wait for each other."""
        digest = hashlib.sha256(f"{self.caller}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


@dataclass(frozen=True)
class KeyedAnswer:
    use: KeyUse
    response: str
    deletion_id: uuid.UUID | None = None


def find_answers(session: Session, uses: Sequence[KeyUse]) -> Mapping[KeyUse, str | IdempotencyMismatch | KeyInFlight]:
    """For each use of a key that cannot go on: what was answered the first time, or why it is refused.

    The others are this transaction's from here on, and for no longer than it lasts, so that a crash leaves no key
    stuck. On SQLite a writer is alone already.
    """
    if not uses:
        return {}
    busy = _busy(session, uses) if session.get_bind().dialect.name == "postgresql" else frozenset()
    found: dict[KeyUse, str | IdempotencyMismatch | KeyInFlight] = {
        use: KeyInFlight(STILL_IN_FLIGHT) for use in uses if use.lock_number in busy
    }
    wanted = tuple_(IdempotencyKey.caller, IdempotencyKey.key).in_([(use.caller, use.key) for use in uses])
    # Read after the locks were taken: whoever held one before has committed.
    query = select(IdempotencyKey.caller, IdempotencyKey.key, IdempotencyKey.body_mac, IdempotencyKey.response)
    known = {(caller, key): (mac, response) for caller, key, mac, response in session.execute(query.where(wanted))}
    for use in uses:
        if answered := known.get((use.caller, use.key)):
            same = hmac.compare_digest(answered[0], use.body_mac)
            found[use] = answered[1] if same else IdempotencyMismatch(ANOTHER_BODY)
    return found


def remember_answers(session: Session, answers: Sequence[KeyedAnswer]) -> None:
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


def _busy(session: Session, uses: Sequence[KeyUse]) -> frozenset[int]:
    """The locks that another transaction holds; all others are ours now. Never waits, so it cannot deadlock."""
    taken = session.execute(TRY_LOCKS, {"numbers": sorted({use.lock_number for use in uses})})
    return frozenset(number for number, ours in taken if not ours)
