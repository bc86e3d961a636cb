from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lethe.verify import Rejected
from lethe.verify.checkpoints import open_checkpoint
from lethe.verify.keys import KeyRing, load_keys
from service.store.log.checkpoints import write_checkpoint
from service.store.signing.statements import StatementSigner
from tests.bundles import SIGNER

RING = load_keys(SIGNER.public_pem.encode())
ROOT = hashlib.sha256(b"root").digest()
NOTE = write_checkpoint(SIGNER, 12, ROOT)


class Witness:
    """As C2SP's tlog-cosignature has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())

    @property
    def material(self) -> bytes:
        return b"\x04" + self._key.public_key().public_bytes_raw()

    @property
    def key_hash(self) -> bytes:
        return hashlib.sha256(f"{self.name}\n".encode() + self.material).digest()[:4]

    @property
    def vkey(self) -> str:
        return f"{self.name}+{self.key_hash.hex()}+{base64.b64encode(self.material).decode()}"

    def cosign(self, note: str, time: int = 1_790_000_000) -> str:
        text = note.partition("\n\n")[0] + "\n"
        signature = self._key.sign(f"cosignature/v1\ntime {time}\n{text}".encode())
        line = base64.b64encode(self.key_hash + time.to_bytes(8, "big") + signature).decode()
        return f"{note}\u2014 {self.name} {line}\n"


FIRST, SECOND = Witness("one.example/witness"), Witness("other.example/witness")


def test_a_checkpoint_of_the_log_is_read() -> None:
    checkpoint = open_checkpoint(NOTE, RING)
    assert (checkpoint.origin, checkpoint.size, checkpoint.root) == ("localhost/lethe", 12, ROOT)
    assert checkpoint.key.key_id == SIGNER.log_key_id
    assert checkpoint.cosignatures == ()


def test_cosignatures_are_checked_and_listed() -> None:
    checkpoint = open_checkpoint(SECOND.cosign(FIRST.cosign(NOTE)), RING, [FIRST.vkey, SECOND.vkey])
    assert tuple(map(str, checkpoint.cosignatures)) == (
        "cosigned by witness one.example/witness at 2026-09-21T14:13:20+00:00",
        "cosigned by witness other.example/witness at 2026-09-21T14:13:20+00:00",
    )


def test_a_witness_that_lethe_names_is_known_but_not_demanded() -> None:
    ring = KeyRing(RING.keys, [FIRST.vkey])
    assert len(open_checkpoint(FIRST.cosign(NOTE), ring).cosignatures) == 1
    assert open_checkpoint(NOTE, ring).cosignatures == ()


def test_a_witness_that_is_demanded_must_have_signed() -> None:
    with pytest.raises(Rejected, match=r"not cosigned by one\.example/witness"):
        open_checkpoint(NOTE, RING, [FIRST.vkey])


def test_a_signature_that_nobody_can_check_is_rejected() -> None:
    with pytest.raises(Rejected, match="cannot be checked; pass its key"):
        open_checkpoint(FIRST.cosign(NOTE), RING)


def test_a_cosignature_of_another_checkpoint_is_rejected() -> None:
    stolen = FIRST.cosign(write_checkpoint(SIGNER, 13, ROOT)).splitlines(keepends=True)[-1]
    with pytest.raises(Rejected, match=r"cosignature of one\.example/witness does not match"):
        open_checkpoint(NOTE + stolen, RING, [FIRST.vkey])


def test_the_time_of_a_witness_is_signed() -> None:
    head, _, line = FIRST.cosign(NOTE).rstrip("\n").rpartition(" ")
    signature = bytearray(base64.b64decode(line))
    signature[11] ^= 1
    with pytest.raises(Rejected, match="does not match"):
        open_checkpoint(f"{head} {base64.b64encode(signature).decode()}\n", RING, [FIRST.vkey])


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("", "not a signed note"),
        (NOTE.replace("12", "13", 1), "does not match its content"),
        (NOTE.replace("12", "012", 1), "not a signed note"),
        (NOTE.replace("localhost/lethe\n", "elsewhere/lethe\n", 1), "cannot be checked"),
        (NOTE[:-1], "not a signed note"),
        (NOTE + "\n", "not a signed note"),
        (NOTE + NOTE.splitlines(keepends=True)[-1], "exactly one signature by the log"),
        (NOTE.replace("\u2014", "-"), "cannot be read"),
        (NOTE.replace("\n\n", "\nextension\n\n"), "not a signed note"),
        (NOTE.partition("\n\n")[0] + "\n\n\n", "not a signed note"),
        (write_checkpoint(StatementSigner(bytes(32), bytes(31) + b"l"), 12, ROOT), "key that was not given"),
    ],
)
def test_what_was_changed_is_rejected(note: str, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        open_checkpoint(note, RING)


NOT_A_WITNESS = base64.b64encode(b"\x01" + FIRST.material[1:]).decode()


@pytest.mark.parametrize("rest", ["", "+00000000+AAAA", f"+00000000+{NOT_A_WITNESS}"])
def test_a_key_that_is_no_witness_is_rejected(rest: str) -> None:
    with pytest.raises(Rejected):
        open_checkpoint(FIRST.cosign(NOTE), RING, [FIRST.name + rest])
