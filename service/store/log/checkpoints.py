"""Checkpoints as C2SP signed notes (tlog-checkpoint): the log's name, its size and its root, and signatures below.

text          origin, size and base64 of the root, a line each
signature     — name base64(key hash || signature over the text)
key hash      the first 4 bytes of SHA-256(name, newline, kind of signature, public key)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.store.signing.statements import StatementSigner

ED25519 = b"\x01"
SIGNATURE_LINE = re.compile(r"— (?P<name>[^\s+]+) (?P<value>[A-Za-z0-9+/]+={0,2})")
CHECKPOINT_TEXT = re.compile(r"(?P<origin>[^\n]+)\n(?P<size>0|[1-9][0-9]*)\n(?P<root>[A-Za-z0-9+/]{43}=)\n")


class InvalidNote(ValueError):
    """The text is not a checkpoint, or its signature lines are malformed."""


@dataclass(frozen=True)
class Signature:
    name: str
    key_hash: bytes
    value: bytes
    line: str
    """The original line, with its newline."""

    @property
    def id(self) -> str:
        """Name and key hash, the beginning of the verifier key."""
        return f"{self.name}+{self.key_hash.hex()}"


@dataclass(frozen=True)
class Note:
    origin: str
    size: int
    root: bytes
    text: str
    """The signed text."""
    signatures: Sequence[Signature]


def write_checkpoint(signer: StatementSigner, size: int, root: bytes) -> str:
    """Return the checkpoint of a tree, signed with the log key."""
    text = f"{signer.origin}\n{size}\n{base64.b64encode(root).decode()}\n"
    value = key_hash(signer.origin, ED25519, signer.log_public_key) + signer.sign_checkpoint(text.encode())
    return f"{text}\n— {signer.origin} {base64.b64encode(value).decode()}\n"


def key_hash(name: str, kind: bytes, public_key: bytes) -> bytes:
    return hashlib.sha256(f"{name}\n".encode() + kind + public_key).digest()[:4]


def parse_note(note: str) -> Note:
    """Parse a note. Its signatures are not verified."""
    text, blank, signature_lines = note.rpartition("\n\n")
    match = CHECKPOINT_TEXT.fullmatch(f"{text}\n")
    if not blank or match is None:
        raise InvalidNote("a checkpoint has a name, a size and a root, an empty line, and signatures")
    root = base64.b64decode(match["root"])
    return Note(match["origin"], int(match["size"]), root, match[0], parse_signatures(signature_lines))


def parse_signatures(lines: str) -> Sequence[Signature]:
    """Parse signature lines alone, as a witness returns them."""
    *complete_lines, remainder = lines.split("\n")
    if remainder:
        raise InvalidNote("a signature line ends with a newline")
    return [_parse_signature(line) for line in complete_lines]


def _parse_signature(line: str) -> Signature:
    match = SIGNATURE_LINE.fullmatch(line)
    if match is None:
        raise InvalidNote("a signature line has a dash, a name and base64")
    try:
        value = base64.b64decode(match["value"], validate=True)
    except binascii.Error:
        raise InvalidNote("a signature is not base64") from None
    return Signature(match["name"], value[:4], value[4:], f"{line}\n")
