"""Which keys are trusted, and until when."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lethe.verify import Rejected, verify
from lethe.verify.keys import load_keys
from service.store.signing.statements import StatementSigner
from tests.bundles import SIGNER, certificate

OTHER = StatementSigner(bytes(32))
ISSUED = "2026-11-16T08:00:05.000Z"


def key_list(**dates: str) -> bytes:
    keys = [
        {"keyid": OTHER.key_id, "public_key_pem": OTHER.public_pem, "retired_at": None, "revoked_at": None},
        {"keyid": SIGNER.key_id, "public_key_pem": SIGNER.public_pem, **dates},
    ]
    return json.dumps({"origin": "localhost/lethe", "keys": keys}).encode()


def test_a_list_of_keys_and_several_pem_files_in_one_are_read() -> None:
    assert set(load_keys(key_list()).keys) == {SIGNER.key_id, OTHER.key_id}
    assert set(load_keys((OTHER.public_pem + SIGNER.public_pem).encode()).keys) == {SIGNER.key_id, OTHER.key_id}


@pytest.mark.parametrize("date", ["2026-11-16T08:00:05.001Z", "2027-01-01T00:00:00+00:00", "2026-11-16T09:00:06+01:00"])
def test_what_was_signed_before_a_key_was_retired_or_revoked_stays_good(date: str) -> None:
    assert verify(certificate(), key_list(retired_at=date)).kind == "certificate"
    verified = verify(certificate(), key_list(revoked_at=date))
    assert "dated before its revocation" in verified.checks[1]


@pytest.mark.parametrize("date", [ISSUED, "2026-11-16T08:00:04Z", "2020-01-01T00:00:00Z", "2026-11-16T09:00:05+01:00"])
@pytest.mark.parametrize("what", ["revoked", "retired"])
def test_what_was_signed_afterwards_is_refused(what: str, date: str) -> None:
    with pytest.raises(Rejected, match=f"when the key was {what}"):
        verify(certificate(), key_list(**{f"{what}_at": date}))


def test_the_checkpoint_too_must_be_by_a_trusted_key() -> None:
    """A certificate by a good key, under a checkpoint by one that was revoked before."""
    from tests.bundles import entry_of, logged, predicate, signed_certificate

    signed = signed_certificate(predicate(), OTHER)
    content = logged(signed, entry_of(signed, "certificate.issued", "c-1"), signer=SIGNER)
    assert verify(content, key_list()).kind == "certificate"
    with pytest.raises(Rejected, match="when the key was revoked"):
        verify(content, key_list(revoked_at="2026-11-16T08:00:05Z"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a key", "neither a list of keys nor"),
        (b"", "neither a list of keys nor"),
        (b"{", "list of keys is not JSON"),
        (b'{"keys": [1]}', "cannot be read"),
        (b'{"keys": [{"public_key_pem": "x"}]}', "PEM"),
        (key_list(revoked_at="soon"), "revoked_at is not a time"),
    ],
)
def test_what_is_no_list_of_keys_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        load_keys(content)


def test_a_key_of_another_kind_is_rejected() -> None:
    rsa: Any = generate_private_key(65537, 2048).public_key()
    with pytest.raises(Rejected, match="Ed25519"):
        load_keys(rsa.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
