"""Idempotency keys: scoped to the caller, kept for ever, the first answer repeated byte for byte."""

from __future__ import annotations

import hmac
import uuid

from sqlalchemy.orm import Session

from service.store.errors import IdempotencyMismatch
from service.store.tables import IdempotencyKey


def find_answer(session: Session, caller: str, key: str, body_mac: bytes) -> str | None:
    """What was answered the first time, or None. The same key with another body is refused."""
    known = session.get(IdempotencyKey, (caller, key))
    if known is None:
        return None
    if not hmac.compare_digest(known.body_mac, body_mac):
        raise IdempotencyMismatch("this Idempotency-Key was used before with another body; use a fresh key")
    return known.response


def remember_answer(
    session: Session, caller: str, key: str, body_mac: bytes, deletion_id: uuid.UUID, response: str
) -> None:
    session.add(IdempotencyKey(caller=caller, key=key, body_mac=body_mac, deletion_id=deletion_id, response=response))
