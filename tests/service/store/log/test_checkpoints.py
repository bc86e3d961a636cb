from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from service.store.log.checkpoints import ED25519, InvalidNote, key_hash, parse_note, parse_signatures, write_checkpoint
from service.store.signing.statements import StatementSigner

SIGNER = StatementSigner(bytes(range(32)), bytes(range(32, 64)), "lethe.example/log")
ROOT = hashlib.sha256(b"root").digest()
# From the specification tlog-cosignature: a checkpoint with a cosignature.
PUBLISHED = """example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""  # noqa: E501


def test_a_checkpoint_line_by_line() -> None:
    lines = write_checkpoint(SIGNER, 7, ROOT).split("\n")
    assert lines[:4] == ["lethe.example/log", "7", base64.b64encode(ROOT).decode(), ""]
    dash, name, value = lines[4].split(" ")
    assert (dash, name, lines[5:]) == ("—", "lethe.example/log", [""])
    signed = base64.b64decode(value)
    expected = hashlib.sha256(b"lethe.example/log\n\x01" + SIGNER.log_public_key).digest()[:4]
    assert signed[:4] == expected == key_hash("lethe.example/log", ED25519, SIGNER.log_public_key)
    text = "\n".join(lines[:3]) + "\n"
    key = Ed25519PublicKey.from_public_bytes(SIGNER.log_public_key)
    key.verify(signed[4:], text.encode())
    with pytest.raises(InvalidSignature):
        key.verify(signed[4:], text.replace("7", "8").encode())


def test_a_written_checkpoint_is_parsed() -> None:
    note = parse_note(write_checkpoint(SIGNER, 7, ROOT))
    assert (note.origin, note.size, note.root) == ("lethe.example/log", 7, ROOT)
    (signature,) = note.signatures
    assert signature.name == "lethe.example/log"
    assert note.text + "\n" + signature.line == write_checkpoint(SIGNER, 7, ROOT)


def test_the_published_example_is_parsed() -> None:
    note = parse_note(PUBLISHED)
    assert (note.origin, note.size, len(note.root)) == ("example.com/behind-the-sofa", 20852163, 32)
    assert [signature.name for signature in note.signatures] == [
        "example.com/behind-the-sofa",
        "witness.example.com/w1",
    ]
    assert note.signatures[1].key_hash.hex() == "8d66cf3f"
    assert int.from_bytes(note.signatures[1].value[:8], "big") == 1679315147
    assert len(note.signatures[1].value) == 72


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: "",
        lambda note: note.replace("\n\n", "\n"),
        lambda note: note.replace("20852163", "020852163"),
        lambda note: note.replace("20852163", "-1"),
        lambda note: note.replace("2I=\n", "2=\n"),
        lambda note: note.replace("— witness", "- witness"),
        lambda note: note.replace("w1 j", "w1  j"),
        lambda note: note.replace("qnA==", "qnA="),
        lambda note: note.removesuffix("\n"),
    ],
)
def test_an_invalid_checkpoint_is_refused(damage: object) -> None:
    with pytest.raises(InvalidNote):
        parse_note(damage(PUBLISHED))  # type: ignore[operator]


def test_signature_lines_are_parsed_alone() -> None:
    lines = PUBLISHED.partition("\n\n")[2]
    assert "".join(signature.line for signature in parse_signatures(lines)) == lines
    with pytest.raises(InvalidNote):
        parse_signatures("<html>sorry</html>\n")
