from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from service.store.signing.statements import (
    StatementSigner,
    pre_authentication_encoding,
    statement_digest,
    write_bundle,
)
from vocabulary.certificate import PAYLOAD_TYPE, LogProof

SIGNER = StatementSigner(bytes(range(32)), bytes(range(32, 64)))
PUBLIC = Ed25519PublicKey.from_public_bytes(SIGNER.public_key)
STATEMENT = '{"name":"Größe"}'.encode()


def test_the_pre_authentication_encoding_is_that_of_dsse() -> None:
    encoded = pre_authentication_encoding(b"hello world", "http://example.com/HelloWorld")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_an_envelope_carries_the_statement_and_its_signature() -> None:
    envelope = SIGNER.sign(STATEMENT)
    assert envelope.decode_payload() == STATEMENT
    (signature,) = envelope.signatures
    assert signature.keyid == hashlib.sha256(SIGNER.public_key).hexdigest() == SIGNER.key_id
    PUBLIC.verify(base64.b64decode(signature.sig), pre_authentication_encoding(STATEMENT, PAYLOAD_TYPE))


def test_a_detached_signature_covers_payload_and_type() -> None:
    signature = base64.b64decode(SIGNER.sign_detached(b"body", "application/x"))
    PUBLIC.verify(signature, pre_authentication_encoding(b"body", "application/x"))
    with pytest.raises(InvalidSignature):
        PUBLIC.verify(signature, pre_authentication_encoding(b"body", "application/y"))


def test_a_raw_signature_covers_the_bare_message() -> None:
    PUBLIC.verify(SIGNER.sign_raw(b"checkpoint\n"), b"checkpoint\n")


def test_a_bundle_is_canonical_with_and_without_its_place_in_the_log() -> None:
    envelope = SIGNER.sign(STATEMENT)
    log = LogProof(checkpoint="log\n1\n", entry='{"a":"\\u0000 — \x7f"}', index=0, proof=["0" * 64])
    for bundle in (write_bundle(envelope), write_bundle(envelope, log)):
        content = json.loads(bundle)
        assert bundle == json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        assert content["format"] == "lethe-bundle-v1"
        assert statement_digest(bundle) == hashlib.sha256(STATEMENT).hexdigest()
    assert json.loads(write_bundle(envelope, log))["log"] == log.model_dump()
