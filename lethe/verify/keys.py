"""Public keys, and until when each is trusted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from .reading import Rejected, list_at, parse_object, text_at, time_at

PEM_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


@dataclass(frozen=True)
class Key:
    public: Ed25519PublicKey
    retired_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def key_id(self) -> str:
        return hashlib.sha256(self.public.public_bytes_raw()).hexdigest()

    def trusted_at(self, signed_at: datetime) -> str:
        """Return a remark on a signature of that time. Raises Rejected if the key was no longer trusted then."""
        for date, state in ((self.revoked_at, "revoked"), (self.retired_at, "retired")):
            if date is not None and signed_at >= date:
                raise Rejected(
                    f"signed at {signed_at.isoformat()}, when the key was {state} (since {date.isoformat()})"
                )
        if self.revoked_at is None:
            return ""
        return " (dated before its revocation; only --later, under a newer key, confirms that date)"


@dataclass(frozen=True)
class KeyRing:
    keys: Mapping[str, Key]
    witnesses: Sequence[str] = ()
    """Keys of the witnesses that the list of keys names."""


def load_keys(content: bytes) -> KeyRing:
    if content.lstrip()[:1] == b"{":
        key_list = parse_object(content, "the list of keys")
        keys = [_load_entry(entry) for entry in list_at(key_list, "keys")]
        witnesses = [str(vkey) for vkey in key_list.get("witnesses") or []]
        return KeyRing({key.key_id: key for key in keys}, witnesses)
    keys = [Key(_load_pem(pem)) for pem in PEM_KEY.findall(content)]
    if not keys:
        raise Rejected("the key file holds neither a list of keys nor a public key in PEM form")
    return KeyRing({key.key_id: key for key in keys})


def _load_entry(entry: Any) -> Key:
    if not isinstance(entry, dict):
        raise Rejected("the list of keys cannot be read")
    dates = {name: time_at(entry, name) for name in ("retired_at", "revoked_at") if entry.get(name) is not None}
    return Key(_load_pem(text_at(entry, "public_key_pem").encode()), **dates)


def _load_pem(pem: bytes) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise Rejected("the key file is not a public key in PEM form") from error
    if not isinstance(key, Ed25519PublicKey):
        raise Rejected("the key is not an Ed25519 public key")
    return key
