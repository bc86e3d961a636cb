"""Parsing of request bodies into deletion requests. Identities become keyed hashes; the originals are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Header

from service.schemas.deletions import DeletionCreate
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import Caller
from service.store.deletions.creation import DeletionRequest
from service.store.deletions.idempotency import KeyUse
from service.store.deletions.opendsr import OpenDsrReference
from service.store.deletions.views import NamedRecord

IdempotencyHeader = Annotated[
    str | None,
    Header(
        min_length=1, max_length=255, description="Recommended: repeating the request then repeats its first answer."
    ),
]


@dataclass(frozen=True)
class RequestParser:
    """Parser for the deletions of one HTTP request."""

    caller: Caller
    hasher: IdentityHasher
    window_seconds: float
    request_id: str

    def parse(self, body: DeletionCreate, opendsr: OpenDsrReference | None = None) -> DeletionRequest:
        identities = [Identity(subject.identity_type, subject.identity_value) for subject in body.subjects]
        return DeletionRequest(
            caller=self.caller.name,
            regulation=body.regulation,
            lookups=list(dict.fromkeys(self.hasher.lookup(identity) for identity in identities)),
            records=list(dict.fromkeys(NamedRecord(record.model, record.record) for record in body.records)),
            model_ids=body.models,
            request_id=self.request_id,
            window_seconds=self.window_seconds,
            callback_urls=body.callback_urls,
            opendsr=opendsr,
        )

    def key_use(self, key: str | None, body: bytes) -> KeyUse | None:
        """Return key and body as keyed hashes: some callers derive their keys from an e-mail address."""
        if key is None:
            return None
        return KeyUse(self.caller.name, self.hasher.mac(f"idempotency\0{key}".encode()).hex(), self.hasher.mac(body))


def canonical_body(body: DeletionCreate) -> bytes:
    """Return the bytes that an idempotency key is bound to, independent of how the JSON was written.

    Fields that were added later count only if they are used, so that old keys still match.
    """
    unused = {name for name in ("records", "callback_urls") if not getattr(body, name)}
    return body.model_dump_json(exclude=unused).encode()
