"""Witnesses of the log (C2SP): third parties that cosign a checkpoint if it continues those they saw before.

A witness is configured by its verifier key, `name+hash+key`, and its URL.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

COSIGNATURE = b"\x04"
TIME_BYTES = 8
FORMAT_HINT = "write each as its verifier key, @ and its URL: name+0123abcd+B...=@https://witness.example"


@dataclass(frozen=True)
class Witness:
    name: str
    key_hash: bytes
    public_key: bytes
    url: str

    @classmethod
    def parse(cls, text: str) -> Witness:
        key, _, url = text.strip().partition("@")
        try:
            name, expected_hash, encoded = key.split("+", 2)
            material = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            raise ValueError(f"a witness cannot be parsed; {FORMAT_HINT}") from None
        if material[:1] != COSIGNATURE or len(material) != 33:
            raise ValueError("a witness's key must be an Ed25519 key for cosignatures, of type 4")
        key_hash = hashlib.sha256(f"{name}\n".encode() + material).digest()[:4]
        if expected_hash != key_hash.hex() or not url.startswith(("https://", "http://")):
            raise ValueError(f"a witness's key hash or URL is wrong; {FORMAT_HINT}")
        return cls(name, key_hash, material[1:], url.rstrip("/"))

    @property
    def id(self) -> str:
        return f"{self.name}+{self.key_hash.hex()}"

    @property
    def verifier_key(self) -> str:
        """Verifier key as configured, without the URL."""
        return f"{self.id}+{base64.b64encode(COSIGNATURE + self.public_key).decode()}"

    def verifies(self, text: str, signature: bytes) -> bool:
        """Whether this is the witness's cosignature of a checkpoint's text: a time, and a signature over both."""
        time = int.from_bytes(signature[:TIME_BYTES], "big")
        message = f"cosignature/v1\ntime {time}\n{text}".encode()
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature[TIME_BYTES:], message)
        except InvalidSignature:
            return False
        return True


def parse_witnesses(text: str) -> Sequence[Witness]:
    return [Witness.parse(part) for part in text.split(",") if part.strip()]
