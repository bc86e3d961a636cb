"""From what a caller sent to what is stored: identities become keyed hashes here, and are nowhere afterwards."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

from service.schemas.deletions import DeletionCreate
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import Caller
from service.store.deletions.creation import NewDeletion
from service.store.deletions.idempotency import KeyUse
from service.store.deletions.lifecycle import NamedRecord

IdempotencyHeader = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="Send one: repeating the request then repeats the answer."),
]


def new_deletion(
    body: DeletionCreate, caller: Caller, hasher: IdentityHasher, window_seconds: float, request_id: str
) -> NewDeletion:
    identities = [Identity(subject.identity_type, subject.identity_value) for subject in body.subjects]
    return NewDeletion(
        caller=caller.name,
        regulation=body.regulation,
        lookups=list(dict.fromkeys(hasher.lookup(identity) for identity in identities)),
        records=list(dict.fromkeys(NamedRecord(record.model, record.record) for record in body.records)),
        model_ids=body.models,
        request_id=request_id,
        window_seconds=window_seconds,
        callback_urls=body.callback_urls,
    )


def same_every_time(body: DeletionCreate) -> bytes:
    """What a key is bound to: the request, however its JSON was written.

    Fields that came later count only when they are used, so that old keys still fit.
    """
    later = {name for name in ("records", "callback_urls") if not getattr(body, name)}
    return body.model_dump_json(exclude=later).encode()


def key_use(hasher: IdentityHasher, caller: Caller, key: str | None, body: bytes) -> KeyUse | None:
    """Key and body as keyed hashes: some callers make their keys of an e-mail address."""
    if key is None:
        return None
    return KeyUse(caller.name, hasher.mac(f"idempotency\0{key}".encode()).hex(), hasher.mac(body))
