"""Statements and their signatures: in-toto Statement v1, canonical JSON (RFC 8785), DSSE envelope, Ed25519.

The verifier in `lethe/verify/` does not share a line with this file, so that each checks the other.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.signer._crypto_signer import CryptoSigner
from securesystemslib.signer._key import SSlibKey

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
RECEIPT_TYPE = "urn:lethe:receipt:v1"
CERTIFICATE_TYPE = "urn:lethe:certificate:v1"
ABSENCE_TYPE = "urn:lethe:absence:v1"
CALLBACK_TYPE = "application/vnd.lethe.callback.v1+json"
BUNDLE_FORMAT = "lethe-bundle-v1"
_PLAIN = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class StatementSigner:
    """Holds the private key and never shows it. `origin` is the name of the log that it signs checkpoints of."""

    def __init__(self, seed: bytes, origin: str = "localhost/lethe") -> None:
        private = Ed25519PrivateKey.from_private_bytes(seed)
        raw = private.public_key().public_bytes_raw()
        self.origin = origin
        self.public_key = raw
        self.key_id = hashlib.sha256(raw).hexdigest()
        self._private = private
        self.public_pem = (
            private.public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            .decode()
        )
        self._signer = CryptoSigner(private, SSlibKey(self.key_id, "ed25519", "ed25519", {"public": raw.hex()}))

    def sign(
        self,
        predicate_type: str,
        subjects: Sequence[Mapping[str, Any]],
        predicate: Mapping[str, Any],
        *,
        fractions: bool = True,
    ) -> dict[str, Any]:
        """The DSSE envelope of a statement about `subjects` (each a name and its SHA-256).

        Say so if it holds no `fractions`: then it is written much faster.
        """
        statement: dict[str, Any] = {
            "_type": STATEMENT_TYPE,
            "subject": list(subjects),
            "predicateType": predicate_type,
            "predicate": dict(predicate),
        }
        return self._envelope(rfc8785.dumps(statement) if fractions else without_fractions(statement))

    def sign_written(
        self, predicate_type: str, subjects: Sequence[Mapping[str, Any]], members: Mapping[str, bytes]
    ) -> dict[str, Any]:
        """As `sign`, the members of the predicate written already: what many statements share is written once."""
        statement = {
            "_type": without_fractions(STATEMENT_TYPE),
            "subject": without_fractions(list(subjects)),
            "predicateType": without_fractions(predicate_type),
            "predicate": _object(members),
        }
        return self._envelope(_object(statement))

    def _envelope(self, payload: bytes) -> dict[str, Any]:
        envelope = Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        signed: dict[str, Any] = envelope.to_dict()
        return signed

    def sign_raw(self, message: bytes) -> bytes:
        """The bare signature: for checkpoints, whose first line says what they are."""
        return self._private.sign(message)

    def sign_detached(self, payload: bytes, payload_type: str) -> str:
        """Base64 of the signature of a DSSE envelope whose payload travels by itself."""
        signature = Envelope(payload, payload_type, {}).sign(self._signer)
        return base64.b64encode(bytes.fromhex(signature.signature)).decode()


def bundle(envelope: Mapping[str, Any], log: Mapping[str, Any] | None = None) -> str:
    """The file that people download. Canonical to the last byte, so that any changed byte shows."""
    parts: dict[str, Any] = {"format": BUNDLE_FORMAT, "envelope": dict(envelope)}
    return without_fractions(parts if log is None else {**parts, "log": dict(log)}).decode()


def payload_digest(envelope: Mapping[str, Any]) -> str:
    """By it the log names the statement."""
    return hashlib.sha256(base64.b64decode(envelope["payload"])).hexdigest()


def statement_digest(signed: str) -> str:
    """Of the statement in a bundle."""
    return payload_digest(json.loads(signed)["envelope"])


def _object(members: Mapping[str, bytes]) -> bytes:
    """RFC 8785 for an object whose members are written already and whose keys are plain ASCII words."""
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), members[name]) for name in sorted(members))


def without_fractions(value: Any) -> bytes:
    """RFC 8785 for what holds no fraction and no key beyond ASCII: Python's own encoder writes the same bytes then,
    and ten times as fast."""
    return _PLAIN.encode(value).encode()
