from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from service.store.signing.statements import (
    StatementSigner,
    key_id_of,
    pre_authentication_encoding,
    public_key_of,
    statement_digest,
    write_bundle,
    write_pem,
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


def test_a_checkpoint_is_signed_bare_and_with_the_log_key_only() -> None:
    log_public, signature = Ed25519PublicKey.from_public_bytes(SIGNER.log_public_key), SIGNER.sign_checkpoint(b"log\n")
    log_public.verify(signature, b"log\n")
    with pytest.raises(InvalidSignature):
        PUBLIC.verify(signature, b"log\n")


def test_the_public_keys_are_written_one_after_the_other() -> None:
    pem = SIGNER.public_pem
    assert pem == "".join(write_pem(key) for key in SIGNER.public_keys.values())
    assert pem.count("BEGIN PUBLIC KEY") == 2
    assert [key_id_of(key) for key in SIGNER.public_keys.values()] == [SIGNER.key_id, SIGNER.log_key_id]
    assert public_key_of(bytes(range(32))) == SIGNER.public_key


def test_a_bundle_is_canonical_with_and_without_its_place_in_the_log() -> None:
    envelope = SIGNER.sign(STATEMENT)
    log = LogProof(checkpoint="log\n1\n", entry='{"a":"\\u0000 — \x7f"}', index=0, proof=["0" * 64])
    for bundle in (write_bundle(envelope), write_bundle(envelope, log)):
        content = json.loads(bundle)
        assert bundle == json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        assert content["format"] == "lethe-bundle-v1"
        assert statement_digest(bundle) == hashlib.sha256(STATEMENT).hexdigest()
    assert json.loads(write_bundle(envelope, log))["log"] == log.model_dump()
