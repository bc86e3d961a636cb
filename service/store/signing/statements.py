"""Signatures: DSSE envelopes with Ed25519, and the bundles that carry them.

The verifier in `lethe/verify/` shares no code with this module, so that each checks the other.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.store.states import SigningUse
from vocabulary.certificate import BUNDLE_FORMAT, PAYLOAD_TYPE, Bundle, Envelope, LogProof, Signature

CALLBACK_TYPE = "application/vnd.lethe.callback.v1+json"


class StatementSigner:
    """The two Ed25519 private keys of a process, never shown: one signs statements, the other the log's checkpoints.

    `origin` is the name of the log.
    """

    def __init__(self, seed: bytes, log_seed: bytes, origin: str = "localhost/lethe") -> None:
        self._private, self._log_private = (Ed25519PrivateKey.from_private_bytes(key) for key in (seed, log_seed))
        self.origin = origin
        self.public_key, self.log_public_key = public_key_of(seed), public_key_of(log_seed)
        self.key_id, self.log_key_id = (key_id_of(key) for key in (self.public_key, self.log_public_key))

    @property
    def public_pem(self) -> str:
        """Return both public keys as PEM, one after the other: together they verify a bundle."""
        return write_pem(self.public_key) + write_pem(self.log_public_key)

    @property
    def public_keys(self) -> Mapping[SigningUse, bytes]:
        return {SigningUse.STATEMENTS: self.public_key, SigningUse.LOG: self.log_public_key}

    def sign(self, statement: bytes) -> Envelope:
        """Return the DSSE envelope of a statement in canonical JSON."""
        signature = Signature(keyid=self.key_id, sig=self.sign_detached(statement, PAYLOAD_TYPE))
        payload = base64.b64encode(statement).decode()
        return Envelope(payload=payload, payloadType=PAYLOAD_TYPE, signatures=[signature])

    def sign_detached(self, payload: bytes, payload_type: str) -> str:
        """Return the base64 signature of a DSSE envelope whose payload is sent separately."""
        return base64.b64encode(self._private.sign(pre_authentication_encoding(payload, payload_type))).decode()

    def sign_checkpoint(self, text: bytes) -> bytes:
        """Return the log key's bare signature of a checkpoint, whose first line says what it is."""
        return self._log_private.sign(text)


def public_key_of(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def key_id_of(public_key: bytes) -> str:
    """Return the id of a key, the SHA-256 of its 32 bytes."""
    return hashlib.sha256(public_key).hexdigest()


def write_pem(public_key: bytes) -> str:
    """Return a public key as PEM."""
    public = Ed25519PublicKey.from_public_bytes(public_key)
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


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
