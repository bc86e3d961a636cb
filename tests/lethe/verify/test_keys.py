"""Which keys are trusted, for what, and until when."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lethe.verify import Rejected, Unconfirmed, verify
from lethe.verify.keys import load_keys
from service.store.signing.statements import StatementSigner, write_pem
from tests.bundles import SIGNER, certificate, entry_of, key_list, logged, predicate, signed_certificate

OTHER = StatementSigner(bytes(32), bytes(31) + b"l")
ISSUED = "2026-11-16T08:00:05.000Z"
AFTER = ["2026-11-16T08:00:05.001Z", "2027-01-01T00:00:00+00:00", "2026-11-16T09:00:06+01:00"]
BEFORE = [ISSUED, "2026-11-16T08:00:04Z", "2020-01-01T00:00:00Z", "2026-11-16T09:00:05+01:00"]
USES = ["statements", "log"]


def test_a_list_of_keys_and_several_pem_files_in_one_are_read() -> None:
    assert set(load_keys(key_list()).keys) == {SIGNER.key_id, SIGNER.log_key_id}
    several = (OTHER.public_pem + "\r\n" + SIGNER.public_pem).encode()
    assert {SIGNER.key_id, OTHER.log_key_id} < set(load_keys(several).keys)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("date", AFTER)
def test_what_was_signed_before_a_key_was_retired_stays_good(date: str, use: str) -> None:
    assert verify(certificate(), key_list(**{use: {"retired_at": date}})).kind == "certificate"


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("date", AFTER)
def test_what_was_signed_before_a_key_was_revoked_is_not_confirmed(date: str, use: str) -> None:
    with pytest.raises(Unconfirmed, match="revoked later") as missing:
        verify(certificate(), key_list(**{use: {"revoked_at": date}}))
    assert missing.value.so_far.kind == "certificate"


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("date", BEFORE)
@pytest.mark.parametrize("what", ["revoked", "retired"])
def test_what_was_signed_afterwards_is_refused(what: str, date: str, use: str) -> None:
    with pytest.raises(Rejected, match=f"when the key was {what}") as reason:
        verify(certificate(), key_list(**{use: {f"{what}_at": date}}))
    assert not isinstance(reason.value, Unconfirmed)


def test_the_entry_too_must_be_older_than_the_end_of_the_statement_key() -> None:
    content = {**predicate(), "issued_at": "2026-11-16T08:00:04.000Z"}
    with pytest.raises(Rejected, match=r"08:00:05\+00:00, when the key was retired"):
        verify(certificate(content=content), key_list(statements={"retired_at": "2026-11-16T08:00:04.500Z"}))


@pytest.mark.parametrize("members", [{"use": None}, {}])
def test_a_key_of_an_earlier_list_signs_both(members: dict[str, Any]) -> None:
    keys = [{"public_key_pem": write_pem(key), **members} for key in (SIGNER.public_key, SIGNER.log_public_key)]
    listed = json.dumps({"origin": "localhost/lethe", "keys": keys}).encode()
    assert verify(certificate(), listed).kind == "certificate"
    signed = signed_certificate(predicate(), StatementSigner(bytes(range(32, 64)), bytes(range(32))))
    assert verify(logged(signed, entry_of(signed, "certificate.issued", "c-1")), listed).kind == "certificate"


def test_each_key_signs_only_what_it_is_for() -> None:
    swapped = StatementSigner(bytes(range(32, 64)), bytes(range(32)))
    with pytest.raises(Rejected, match="not for statements"):
        verify(certificate(signer=swapped), key_list())
    signed = signed_certificate(predicate())
    with pytest.raises(Rejected, match="not for the log"):
        verify(logged(signed, entry_of(signed, "certificate.issued", "c-1"), signer=swapped), key_list())


def test_the_name_of_the_log_comes_from_the_list_or_from_the_caller() -> None:
    pem = SIGNER.public_pem.encode()
    assert load_keys(key_list()).origin == "localhost/lethe"
    assert (load_keys(pem).origin, load_keys(pem, "a/b").origin) == (None, "a/b")
    assert load_keys(pem, "").origin == ""
    with pytest.raises(Rejected, match="are of the log 'localhost/lethe', not of 'a/b'"):
        load_keys(key_list(), "a/b")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a key", "neither a list of keys nor"),
        (b"", "neither a list of keys nor"),
        (b" " * (1 << 21), "too large"),
        (b"{", "list of keys is not JSON"),
        (b'{"keys": {}}', "keys is missing"),
        (b'{"keys": []}', "empty"),
        (b'{"keys": [1]}', "cannot be read"),
        (b'{"keys": [{"public_key_pem": "x"}]}', "PEM"),
        (key_list(log={"revoked_at": "soon"}), "revoked_at is not a time"),
        (key_list(log={"revoked_at": 5}), "revoked_at is missing"),
        (key_list(log={"use": "callbacks"}), "use that this verifier does not know"),
        (key_list(log={"use": ["log"]}), "use that this verifier does not know"),
        (key_list(log={"keyid": "0" * 64}), "does not match its id"),
        (key_list(log={"keyid": SIGNER.key_id, "public_key_pem": write_pem(SIGNER.public_key)}), "names a key twice"),
        (key_list(log={"public_key_pem": write_pem(SIGNER.log_public_key) + write_pem(SIGNER.public_key)}), "not one"),
        (key_list(witnesses="w"), "witnesses is missing"),
        (key_list(witnesses=[1]), "witnesses is missing"),
        (key_list(origin=5), "origin is missing"),
        (b"-----BEGIN PUBLIC KEY-----\n" * 30_000, "PEM form"),
    ],
)
def test_what_is_no_list_of_keys_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        load_keys(content)


def test_a_key_of_another_kind_is_rejected() -> None:
    rsa: Any = generate_private_key(65537, 2048).public_key()
    with pytest.raises(Rejected, match="Ed25519"):
        load_keys(rsa.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
