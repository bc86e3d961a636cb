"""Signatures: DSSE envelopes with Ed25519, and the bundles that carry them.

The verifier in `lethe/verify/` shares no code with this module, so that each checks the other.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vocabulary.certificate import BUNDLE_FORMAT, PAYLOAD_TYPE, Bundle, Envelope, LogProof, Signature

CALLBACK_TYPE = "application/vnd.lethe.callback.v1+json"


class StatementSigner:
    """Ed25519 private key, which is never shown. `origin` names the log whose checkpoints it signs."""

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

    def sign(self, statement: bytes) -> Envelope:
        """Return the DSSE envelope of a statement in canonical JSON."""
        signature = Signature(keyid=self.key_id, sig=self.sign_detached(statement, PAYLOAD_TYPE))
        payload = base64.b64encode(statement).decode()
        return Envelope(payload=payload, payloadType=PAYLOAD_TYPE, signatures=[signature])

    def sign_detached(self, payload: bytes, payload_type: str) -> str:
        """Return the base64 signature of a DSSE envelope whose payload is sent separately."""
        return base64.b64encode(self._private.sign(pre_authentication_encoding(payload, payload_type))).decode()

    def sign_raw(self, message: bytes) -> bytes:
        """Return the bare signature of a checkpoint, whose first line says what it is."""
        return self._private.sign(message)


def pre_authentication_encoding(payload: bytes, payload_type: str) -> bytes:
    """Return what DSSE signs: payload type and payload, each with its length."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type.encode(), len(payload), payload)


def write_bundle(envelope: Envelope, log: LogProof | None = None) -> str:
    """Return the file that people download. It is canonical, so that any changed byte shows."""
    log_member = {} if log is None else {"log": log}
    return Bundle(format=BUNDLE_FORMAT, envelope=envelope, **log_member).to_canonical_json().decode()


def statement_digest(bundle: str) -> str:
    """Return the SHA-256 of the statement in a bundle, by which the log names it."""
    return hashlib.sha256(Bundle.model_validate_json(bundle).envelope.decode_payload()).hexdigest()
