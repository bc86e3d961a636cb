"""From what a caller sent to what is stored: identities become keyed hashes here, and are nowhere afterwards."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

from service.resources import Resources
from service.schemas import DeletionCreate
from service.store.deletions import NamedRecord
from service.store.idempotency import KeyUse
from service.store.identities import Identity
from service.store.intake import NewDeletion
from service.store.tokens import Caller

IdempotencyHeader = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="Send one: repeating the request then repeats the answer."),
]


def new_deletion(body: DeletionCreate, caller: Caller, resources: Resources, request_id: str) -> NewDeletion:
    identities = [Identity(subject.identity_type, subject.identity_value) for subject in body.subjects]
    return NewDeletion(
        caller=caller.name,
        regulation=body.regulation,
        lookups=list(dict.fromkeys(resources.hasher.lookup(identity) for identity in identities)),
        records=list(dict.fromkeys(NamedRecord(record.model, record.record) for record in body.records)),
        model_ids=body.models,
        request_id=request_id,
        window_seconds=resources.settings.batch_window_seconds,
        callback_urls=body.callback_urls,
    )


def same_every_time(body: DeletionCreate) -> bytes:
    """What a key is bound to: the request, however its JSON was written.

    Fields that came later count only when they are used, so that old keys still fit.
    """
    later = {name for name in ("records", "callback_urls") if not getattr(body, name)}
    return body.model_dump_json(exclude=later).encode()


def key_use(resources: Resources, caller: Caller, key: str | None, body: bytes) -> KeyUse | None:
    """Key and body as keyed hashes: some callers make their keys of an e-mail address."""
    if key is None:
        return None
    return KeyUse(caller.name, resources.hasher.mac(f"idempotency\0{key}".encode()).hex(), resources.hasher.mac(body))
