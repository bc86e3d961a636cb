"""Parsing of request bodies into deletion requests. Identities become keyed hashes; the originals are dropped."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from fastapi import Header
from fastapi.exceptions import RequestValidationError

from service.schemas.deletions import DeletionCreate
from service.schemas.identity_leaks import IN_KEY, key_names
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import Caller
from service.store.deletions.bodies import digest_content
from service.store.deletions.idempotency import KeyUse
from service.store.deletions.requests import DeletionRequest, OpenDsrReference
from service.store.deletions.views import NamedRecord

IdempotencyHeader = Annotated[
    str | None,
    Header(
        min_length=1, max_length=255, description="Recommended: repeating the request then repeats its first answer."
    ),
]

RANDOM_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True)
class RequestParser:
    """Parser for the deletions of one HTTP request."""

    caller: Caller
    hasher: IdentityHasher
    window_seconds: float
    request_id: str
    key: str | None = None
    """Idempotency key of the request."""
    body_id: uuid.UUID = field(default_factory=uuid.uuid4)

    def parse(self, body: DeletionCreate, opendsr: OpenDsrReference | None = None) -> DeletionRequest:
        identities = [Identity(subject.identity_type, subject.identity_value) for subject in body.subjects]
        if self.key is not None and key_names(self.key, (identity.value for identity in identities)):
            error = {"type": "identity", "loc": ("header", "Idempotency-Key"), "msg": IN_KEY}
            raise RequestValidationError([error])
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
            body_id=self.body_id,
            allowed_models=self.caller.limits.models,
            content=_digest(body, identities),
        )

    def key_use(
        self, key: str | None, kind: str, requests: Sequence[DeletionRequest], slice_number: int = 0
    ) -> KeyUse | None:
        """Return the use of a key by these requests. The later slices of a bulk have keys of their own."""
        if key is None:
            return None
        text = f"idempotency\0{key}\0{slice_number}" if slice_number else f"idempotency\0{key}"
        return KeyUse(
            caller=self.caller.name,
            key=self.hasher.mac(text.encode()).hex(),
            kind=kind,
            content=digest_content(kind, requests),
            mac=self.hasher.mac,
            lasting_mac=partial(_mac_under, key) if _is_random(key) else None,
            body_id=requests[0].body_id if requests else self.body_id,
        )


def _digest(body: DeletionCreate, identities: Iterable[Identity]) -> bytes:
    """Return a plain digest of what the body asks for, independent of how it is written."""
    content = [
        body.regulation,
        sorted({identity.canonical for identity in identities}),
        sorted({(str(record.model), record.record) for record in body.records}),
        None if body.models is None else sorted(map(str, body.models)),
        sorted(set(body.callback_urls)),
    ]
    return hashlib.sha256(json.dumps(content).encode()).digest()


def _is_random(key: str) -> bool:
    """Whether nobody can guess the key: a UUID of version 4 has 122 random bits."""
    return RANDOM_UUID.fullmatch(key) is not None


def _mac_under(key: str, content: bytes) -> bytes:
    return hmac.digest(key.encode(), content, "sha256")
