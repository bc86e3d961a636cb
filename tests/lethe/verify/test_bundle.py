"""The verifier on certificates by the signer, with which it shares no code."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicNumbers
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from lethe.verify import Rejected, verify
from lethe.verify.bundle import pre_authentication_encoding
from service.store.signing import statements as signing
from service.store.signing.statements import StatementSigner
from tests.bundles import POSTERIOR, SIGNER, certificate, minimal_predicate, sign

KEY = SIGNER.public_pem.encode()


def test_a_good_certificate_is_accepted_line_by_line() -> None:
    verified = verify(certificate(), KEY, POSTERIOR)
    assert verified.kind == "certificate"
    assert len(verified.checks) == 11
    assert any("KL <= 1.000e-09" in check for check in verified.checks)
    assert "entry 5 of the log localhost/lethe at 9 entries records it" in verified.checks


def test_another_model_file_is_rejected() -> None:
    with pytest.raises(Rejected, match="not the version"):
        verify(certificate(), KEY, POSTERIOR + b".")


def test_another_key_is_rejected() -> None:
    other = StatementSigner(bytes(32), bytes(31) + b"l").public_pem.encode()
    with pytest.raises(Rejected, match="not signed by one of the given keys"):
        verify(certificate(), other)


def mutations(whole: bytes) -> Iterator[bytes]:
    """Every single byte flipped, left out, and every position with a byte put in."""
    for position in range(len(whole)):
        for flip in (0x01, 0x80):
            yield whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :]
        yield whole[:position] + whole[position + 1 :]
    for position in range(len(whole) + 1):
        for put in b" 0":
            yield whole[:position] + bytes([put]) + whole[position:]


def rejection(content: bytes, keys: bytes) -> str:
    with pytest.raises(Rejected) as reason:
        verify(content, keys)
    return str(reason.value)


@pytest.mark.slow
def test_every_change_of_a_single_byte_is_rejected_with_a_reason() -> None:
    whole = certificate(content=minimal_predicate())
    tried = 0
    for content in mutations(whole):
        assert rejection(content, KEY)
        tried += 1
    assert tried == 5 * len(whole) + 2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_hundred_thousand_random_mutations_are_rejected() -> None:
    """Of certificates that differ in content, key and position: bytes changed, left out, moved or doubled."""
    draw = random.Random(7)
    sources = [_some_certificate(draw) for _ in range(20)]
    for _ in range(100_000):
        whole, keys = draw.choice(sources)
        content = _mutated(draw, whole)
        if content != whole:
            assert rejection(content, keys)


def _some_certificate(draw: random.Random) -> tuple[bytes, bytes]:
    signer = StatementSigner(draw.randbytes(32), draw.randbytes(32))
    size = draw.randint(1, 300)
    content = {**minimal_predicate(), "deletion": str(draw.random())}
    return certificate(
        signer=signer, content=content, size=size, index=draw.randrange(size)
    ), signer.public_pem.encode()


def _mutated(draw: random.Random, whole: bytes) -> bytes:
    first, second = sorted(draw.sample(range(len(whole)), 2))
    few = whole[first : first + draw.randint(1, 8)]
    match draw.randrange(6):
        case 0:
            return whole[:first] + draw.randbytes(draw.randint(1, 4)) + whole[first:]
        case 1:
            return whole[:first] + whole[first + len(few) :]
        case 2:
            return whole[:first] + few + whole[first:]
        case 3:
            return (
                whole[:first] + whole[second : second + 1] + whole[first + 1 : second] + few[:1] + whole[second + 1 :]
            )
        case 4:
            return whole[:first]
        case _:
            return whole[:first] + draw.randbytes(len(few)) + whole[first + len(few) :]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"envelope":{},"format":"lethe-bundle-v1"}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"1" * 5000,
        b'{"envelope":{"payload":"\xed\xa0\x80"},"format":"lethe-bundle-v1"}',
        b'{"envelope":{"payload":"","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":[],"sig":""}]},'
        b'"format":"lethe-bundle-v1"}',
    ],
)
def test_what_is_no_bundle_is_rejected_without_a_traceback(content: bytes) -> None:
    assert rejection(content, KEY)


def test_an_unknown_kind_of_statement_is_rejected() -> None:
    content = sign("urn:lethe:promise:v9", [], {}).encode()
    with pytest.raises(Rejected, match="newer"):
        verify(content, KEY)


def test_the_signed_payload_is_canonical_json() -> None:
    payload = base64.b64decode(json.loads(certificate())["envelope"]["payload"])
    assert payload == rfc8785.dumps(json.loads(payload))


def test_the_published_vector_of_dsse() -> None:
    """Its signature is by ECDSA, which we do not use: what is signed, by us and by the verifier, is what it fits."""
    numbers = (
        46950820868899156662930047687818585632848591499744589407958293238635476079160,
        5640078356564379163099075877009565129882514886557779369047442380624545832820,
    )
    key = EllipticCurvePublicNumbers(*numbers, SECP256R1()).public_key()
    raw = base64.b64decode("A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA==")
    signature = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    payload_type, payload = "http://example.com/HelloWorld", b"hello world"
    by_signer = signing.pre_authentication_encoding(payload, payload_type)
    for signed in (pre_authentication_encoding(payload_type, payload), by_signer):
        key.verify(signature, signed, ECDSA(SHA256()))
