"""Schemas of the transparency log and of its public keys. Hashes are hexadecimal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, Field, StringConstraints

from service.schemas.fields import WHOLE_NUMBER
from service.settings import Settings
from service.store.signing.keys import public_pem
from service.store.states import SigningUse
from service.store.tables import SigningKey

MAX_SIZE = 2**62
"""Exclusive limit of sizes and indices, so that databases can count to it."""
HASH = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
NOTE = (
    "lethe.example/lethe\n8\nXcnaeacGWamtVZy3Ad7ZoqudgjqtL0lgz+Nw7/RgQyg=\n\n— lethe.example/lethe "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
)
LEAF = (
    '{"action":"deletion.received","actor":"acme","at":"2026-11-16T08:00:05.000120Z",'
    '"concerns":"0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f","details":{"subjects":["b1946ac9…"]}}\n'
)

Index = Annotated[int, Query(ge=0, lt=MAX_SIZE, description="Index of the entry in the log, from 0."), WHOLE_NUMBER]
LeafHash = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{64}$"),
    Query(description="Leaf hash of the entry, as on a receipt: SHA-256 of a zero byte and the canonical JSON."),
]
Size = Annotated[int, Query(ge=0, lt=MAX_SIZE), WHOLE_NUMBER]

Note = Annotated[
    str | None,
    Field(description="Signed checkpoint of that size; null if there is none.", examples=[NOTE]),
]
Proof = Annotated[list[str], Field(examples=[[HASH]])]


class InclusionOut(BaseModel):
    """Proof that an entry is in the tree (RFC 6962, 2.1.1)."""

    index: int = Field(examples=[5])
    leaf: str = Field(description="Leaf hash of the entry.", examples=[HASH])
    size: int = Field(examples=[8])
    proof: Proof
    checkpoint: Note


class ConsistencyOut(BaseModel):
    """Proof that a smaller tree is a prefix of a larger one (RFC 6962, 2.1.2)."""

    old: int = Field(examples=[6])
    new: int = Field(examples=[8])
    proof: Proof
    checkpoint: Note


class PublicKey(BaseModel):
    keyid: str = Field(description="SHA-256 of the 32 key bytes.")
    algorithm: Literal["ed25519"] = "ed25519"
    public_key_pem: str
    use: SigningUse | None = Field(
        description="What the key signs: statements (receipts, certificates, callbacks) or the log's checkpoints; null "
        "for a key from before they were told apart, which signed both."
    )
    created_at: datetime = Field(description="When the key was registered with this service.")
    retired_at: datetime | None = Field(description="Signatures made then or later are not from this service.")
    revoked_at: datetime | None = Field(
        description="The key may have leaked: do not trust signatures made then or later."
    )
    reason: str | None = Field(description="Why the key was revoked.")


class PublicKeys(BaseModel):
    origin: str = Field(description="Name of the log whose checkpoints these keys sign.")
    keys: list[PublicKey] = Field(description="The current keys first, then newest first.")
    witnesses: list[str] = Field(description="Verifier keys (C2SP) of the witnesses that cosign checkpoints.")


def public_keys_out(settings: Settings, keys: Sequence[SigningKey]) -> PublicKeys:
    witnesses = [witness.verifier_key for witness in settings.log_witnesses]
    return PublicKeys(origin=settings.origin, keys=[_public_key_out(key) for key in keys], witnesses=witnesses)


def _public_key_out(key: SigningKey) -> PublicKey:
    return PublicKey(
        keyid=key.key_id,
        public_key_pem=public_pem(key),
        use=None if key.use is None else SigningUse(key.use),
        created_at=key.created_at,
        retired_at=key.retired_at,
        revoked_at=key.revoked_at,
        reason=key.reason,
    )
