"""Public keys: what each may sign, and until when it is trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .reading import Rejected, decode_base64, list_at, text_at, texts_at, time_at
from .strict_json import parse_object

MAX_KEYS_BYTES = 1 << 20
PEM_BEGIN, PEM_END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"
DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""What precedes the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo."""
WITHOUT_SPACES = str.maketrans("", "", " \t\r\n")
STATEMENTS, LOG = "statements", "log"


@dataclass(frozen=True)
class Key:
    public: Ed25519PublicKey
    use: str | None = None
    """None signs both: a bare PEM key, or one listed before the uses were separated."""
    retired_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def key_id(self) -> str:
        return hashlib.sha256(self.public.public_bytes_raw()).hexdigest()

    def may_sign(self, use: str) -> bool:
        return self.use in (None, use)

    def require_trusted(self, signed_at: datetime) -> None:
        """Raise Rejected if the key was no longer trusted at that time."""
        for date, state in ((self.revoked_at, "revoked"), (self.retired_at, "retired")):
            if date is not None and signed_at >= date:
                raise Rejected(
                    f"signed at {signed_at.isoformat()}, when the key was {state} (since {date.isoformat()})"
                )


@dataclass(frozen=True)
class KeyRing:
    keys: Mapping[str, Key]
    witnesses: Sequence[str] = ()
    """Keys of the witnesses that the list of keys names."""
    origin: str | None = None
    """Name of the log whose keys these are. Unknown with bare PEM keys."""

    def with_witnesses(self, witnesses: Sequence[str]) -> KeyRing:
        """Return a ring that knows more witnesses."""
        return replace(self, witnesses=(*self.witnesses, *witnesses))


def load_keys(content: bytes, origin: str | None = None) -> KeyRing:
    """Read a list of keys (JSON) or public keys (PEM). `origin` is the log's name if the reader knows it."""
    if len(content) > MAX_KEYS_BYTES:
        raise Rejected("the file of keys is too large")
    ring = _load_list(content) if content.lstrip(b" \t\r\n")[:1] == b"{" else _load_pems(content)
    if origin is not None and ring.origin not in (None, origin):
        raise Rejected(f"the keys are of the log {ring.origin!r}, not of {origin!r}")
    return KeyRing(ring.keys, ring.witnesses, ring.origin if origin is None else origin)


def _load_list(content: bytes) -> KeyRing:
    key_list = parse_object(content, "the list of keys")
    keys = [_load_entry(entry) for entry in list_at(key_list, "keys")]
    ring = {key.key_id: key for key in keys}
    if not keys or len(ring) != len(keys):
        raise Rejected("the list of keys is empty or names a key twice")
    origin = text_at(key_list, "origin") if "origin" in key_list else None
    return KeyRing(ring, texts_at(key_list, "witnesses"), origin)


def _load_pems(content: bytes) -> KeyRing:
    text = content.decode(errors="replace")
    keys = [Key(_load_pem(PEM_BEGIN + block)) for block in text.split(PEM_BEGIN)[1:]]
    if not keys:
        raise Rejected("the key file holds neither a list of keys nor a public key in PEM form")
    return KeyRing({key.key_id: key for key in keys})


def _load_entry(entry: Any) -> Key:
    if not isinstance(entry, dict):
        raise Rejected("the list of keys cannot be read")
    use = entry.get("use")
    if use not in (None, STATEMENTS, LOG):
        raise Rejected("the list of keys names a use that this verifier does not know; use a newer one")
    dates = {name: time_at(entry, name) for name in ("retired_at", "revoked_at") if entry.get(name) is not None}
    key = Key(_load_pem(text_at(entry, "public_key_pem")), use, **dates)
    if entry.get("keyid", key.key_id) != key.key_id:
        raise Rejected("a key in the list of keys does not match its id")
    return key


def _load_pem(pem: str) -> Ed25519PublicKey:
    body, end, after = pem.removeprefix(PEM_BEGIN).partition(PEM_END)
    if not pem.startswith(PEM_BEGIN) or not end or PEM_BEGIN in after:
        raise Rejected("a key is not one public key in PEM form")
    encoded = decode_base64(body.translate(WITHOUT_SPACES), "public key")
    if len(encoded) != 44 or not encoded.startswith(DER_PREFIX):
        raise Rejected("a key is not an Ed25519 public key")
    return Ed25519PublicKey.from_public_bytes(encoded[12:])
