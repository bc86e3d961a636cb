"""What is missing when nothing is wrong: a place in the log, or evidence for the date of a revoked key's signature.

A statement key vouches for the date in the statement, a log key for the date of the entry. Whoever stole a key can sign
with any date. So the signature of a key that was revoked later counts only if somebody else shows that it is older: a
checkpoint under a key that is not revoked and that continues the bundle's, or a witness that cosigned before.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .keys import Key
from .log import Inclusion
from .reading import object_at, time_at, whole_at
from .statements import Kind


def find_missing(
    inclusion: Inclusion | None, key: Key, kind: Kind, predicate: Mapping[str, Any], now: datetime | None
) -> str:
    """Return what is missing and what to do about it; empty if nothing is."""
    reasons = [_unlogged(kind, predicate, now or datetime.now(UTC))] if inclusion is None else []
    return "; ".join([*reasons, *_unconfirmed_date(inclusion, key)])


def _unlogged(kind: Kind, predicate: Mapping[str, Any], now: datetime) -> str:
    if not kind.promises_entry:
        return "it does not show its place in the log yet; download it again"
    seconds = whole_at(object_at(predicate, "log"), "within_seconds")
    if now - time_at(predicate, "received_at") <= timedelta(seconds=min(seconds, 1 << 31)):
        return f"its entry in the log is promised within {seconds} seconds of receipt; download it again then"
    return (
        f"the entry in the log that it promised within {seconds} seconds is overdue; download it again, and if it "
        "still lacks its place in the log, ask the operator for it and keep this file as evidence of the promise"
    )


def _unconfirmed_date(inclusion: Inclusion | None, key: Key) -> list[str]:
    keys = [key] if inclusion is None else [key, inclusion.checkpoint.key]
    revocations = [signer.revoked_at for signer in keys if signer.revoked_at is not None]
    if not revocations or (inclusion is not None and _is_confirmed(inclusion, min(revocations))):
        return []
    return [
        "it is signed by a key that was revoked later, and nothing confirms that it is older than the revocation; "
        "pass a later checkpoint under a newer key (--later), or have a certificate issued again"
    ]


def _is_confirmed(inclusion: Inclusion, revoked_at: datetime) -> bool:
    later = [] if inclusion.later is None else [inclusion.later]
    if any(checkpoint.key.revoked_at is None for checkpoint in later):
        return True
    checkpoints = [inclusion.checkpoint, *later]
    return any(cosignature.at < revoked_at for checkpoint in checkpoints for cosignature in checkpoint.cosignatures)
