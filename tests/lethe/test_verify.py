"""The verifier, on certificates made by the signer, which shares no code with it."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lethe.verify import Rejected, verify
from service.store.certificates import sign_receipt
from service.store.deletions import DeletionView
from service.store.signing import CERTIFICATE_TYPE, StatementSigner, bundle
from service.store.tables import Deletion

SIGNER = StatementSigner(bytes(range(32)))
KEY = SIGNER.public_pem.encode()
POSTERIOR = b"the posterior after forgetting"


def predicate() -> dict[str, Any]:
    return {
        "deletion": "d-1",
        "received_at": "2026-11-16T08:00:00.000Z",
        "issued_at": "2026-11-16T08:00:05.000Z",
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "policy": {"epsilon": 1e-6, "level": "proved"},
        "bound": {"epsilon": 1e-9, "level": "proved", "assumptions": [{"name": "curvature", "holds": True}]},
    }


def certificate(change: Callable[[dict[str, Any]], object] = lambda _: None) -> bytes:
    """A signed certificate whose content was changed before signing."""
    content = predicate()
    change(content)
    digests = [hashlib.sha256(b"before").hexdigest(), hashlib.sha256(POSTERIOR).hexdigest()]
    subjects = [{"name": str(place), "digest": {"sha256": digest}} for place, digest in enumerate(digests)]
    return bundle(SIGNER.sign(CERTIFICATE_TYPE, subjects, content)).encode()


def test_a_good_certificate_is_accepted_line_by_line() -> None:
    found = verify(certificate(), KEY, POSTERIOR)
    assert found.kind == "certificate"
    assert len(found.checks) == 8
    assert any("KL <= 1.000e-09" in check for check in found.checks)


def estimated(interval: Any) -> Callable[[dict[str, Any]], object]:
    def change(content: dict[str, Any]) -> None:
        content["policy"]["level"] = "estimated"
        content["bound"].update(level="estimated", interval=interval)

    return change


def test_an_estimate_is_told_with_its_interval() -> None:
    found = verify(certificate(estimated([1e-10, 1e-9])), KEY)
    assert any("KL estimated at 1.000e-10 to 1.000e-09 (policy 1.0e-06), level estimated" in c for c in found.checks)


@pytest.mark.parametrize("interval", [None, [], [1e-9], [2e-9, 1e-9], [0.0, 2e-9], [None, 1e-9], [-1e-9, 1e-9]])
def test_an_estimate_that_is_not_the_upper_end_of_its_interval_is_rejected(interval: Any) -> None:
    with pytest.raises(Rejected, match="interval"):
        verify(certificate(estimated(interval)), KEY)


def test_a_receipt_is_accepted() -> None:
    deletion = Deletion(id="d-1", regulation="gdpr", received_at=datetime(2026, 11, 16, tzinfo=UTC))
    content = sign_receipt(SIGNER, DeletionView(deletion, ["b" * 64, "a" * 64], [])).encode()
    assert verify(content, KEY).kind == "receipt"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p["bound"].update(epsilon=1e-5), "not within the policy"),
        (lambda p: p["bound"].update(epsilon=-1e-9), "not within the policy"),
        (lambda p: p["bound"].update(epsilon=None), "epsilon is not a number"),
        (lambda p: p["bound"].update(level="none"), "does not support a bound"),
        (lambda p: p["bound"].update(assumptions=[]), "does not support a bound"),
        (lambda p: p["bound"].update(level="estimated"), "weaker than 'proved'"),
        (lambda p: p["bound"].update(level="retrained"), "not 0"),
        (lambda p: p["policy"].update(level="some"), "does not support a bound"),
        (lambda p: p["policy"].pop("level"), "level is missing"),
        (lambda p: p["bound"]["assumptions"][0].update(holds=False), "assumptions does not hold"),
        (lambda p: p["records"].update(after=40), "do not add up"),
        (lambda p: p["records"].update(forgotten_in_batch=3), "do not add up"),
        (lambda p: p.update(issued_at="2026-11-15T08:00:00.000Z"), "before its request"),
        (lambda p: p.update(received_at="yesterday"), "not a time"),
        (lambda p: p.pop("bound"), "bound is missing"),
        (lambda p: p.pop("deletion"), "deletion is missing"),
    ],
)
def test_a_signed_certificate_that_contradicts_itself_is_rejected(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(certificate(change), KEY)


def test_another_model_file_is_rejected() -> None:
    with pytest.raises(Rejected, match="not the version"):
        verify(certificate(), KEY, POSTERIOR + b".")


def test_another_key_is_rejected() -> None:
    other = StatementSigner(bytes(32)).public_pem.encode()
    with pytest.raises(Rejected, match="not signed by this key"):
        verify(certificate(), other)
    rsa = generate_private_key(65537, 2048).public_key()
    with pytest.raises(Rejected, match="Ed25519"):
        verify(certificate(), rsa.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(Rejected, match="PEM"):
        verify(certificate(), b"not a key")


def test_every_flipped_byte_is_rejected_with_a_reason() -> None:
    whole = certificate()
    for place in range(len(whole)):
        for flip in (0x01, 0x20, 0x80):
            changed = whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :]
            with pytest.raises(Rejected) as rejection:
                verify(changed, KEY)
            assert str(rejection.value)


def test_bytes_put_in_or_left_out_are_rejected() -> None:
    whole, draw = certificate(), random.Random(5)
    for _ in range(2000):
        place = draw.randrange(len(whole) + 1)
        changed = whole[:place] + bytes([draw.randrange(256)]) + whole[place:]
        shorter = whole[:place] + whole[place + 1 + draw.randrange(8) :]
        for content in (changed, shorter):
            if content != whole:
                with pytest.raises(Rejected):
                    verify(content, KEY)


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
    ],
)
def test_what_is_no_bundle_is_rejected_without_a_traceback(content: bytes) -> None:
    with pytest.raises(Rejected):
        verify(content, KEY)


def test_an_unknown_kind_of_statement_is_rejected() -> None:
    content = bundle(SIGNER.sign("urn:lethe:promise:v9", [], {})).encode()
    with pytest.raises(Rejected, match="newer"):
        verify(content, KEY)


def test_the_signed_payload_is_canonical_json() -> None:
    payload = base64.b64decode(json.loads(certificate())["envelope"]["payload"])
    assert payload == rfc8785.dumps(json.loads(payload))
