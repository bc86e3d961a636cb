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


class NotANote(ValueError):
    """The text is no checkpoint, or what stands below it are no signatures."""


@dataclass(frozen=True)
class Signature:
    name: str
    key_hash: bytes
    value: bytes
    line: str
    """As it was written, with its newline."""

    @property
    def id(self) -> str:
        """Whose it is, as verifier keys begin."""
        return f"{self.name}+{self.key_hash.hex()}"


@dataclass(frozen=True)
class Note:
    origin: str
    size: int
    root: bytes
    text: str
    """What the signatures are over."""
    signatures: Sequence[Signature]


def write(signer: StatementSigner, size: int, root: bytes) -> str:
    """The checkpoint of a tree, signed."""
    text = f"{signer.origin}\n{size}\n{base64.b64encode(root).decode()}\n"
    value = key_hash(signer.origin, ED25519, signer.public_key) + signer.sign_raw(text.encode())
    return f"{text}\n— {signer.origin} {base64.b64encode(value).decode()}\n"


def key_hash(name: str, kind: bytes, public_key: bytes) -> bytes:
    return hashlib.sha256(f"{name}\n".encode() + kind + public_key).digest()[:4]


def parse(note: str) -> Note:
    """Take a note apart. Whether its signatures are good is another question."""
    text, blank, below = note.rpartition("\n\n")
    found = CHECKPOINT_TEXT.fullmatch(f"{text}\n")
    if not blank or found is None:
        raise NotANote("a checkpoint has a name, a size and a root, an empty line, and signatures")
    root = base64.b64decode(found["root"])
    return Note(found["origin"], int(found["size"]), root, found[0], parse_signatures(below))


def parse_signatures(lines: str) -> Sequence[Signature]:
    """Signature lines by themselves, as a witness answers."""
    *whole, rest = lines.split("\n")
    if rest:
        raise NotANote("a signature line ends with a newline")
    return [_signature(line) for line in whole]


def _signature(line: str) -> Signature:
    found = SIGNATURE_LINE.fullmatch(line)
    if found is None:
        raise NotANote("a signature line has a dash, a name and base64")
    try:
        value = base64.b64decode(found["value"], validate=True)
    except binascii.Error:
        raise NotANote("a signature is not base64") from None
    return Signature(found["name"], value[:4], value[4:], f"{line}\n")
