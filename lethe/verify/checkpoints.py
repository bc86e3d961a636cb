"""Checkpoints of the log: C2SP signed notes, by the log itself and by witnesses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .keys import Key, KeyRing
from .reading import Rejected, decode_base64, is_signed

NOTE_KEY, WITNESS_KEY = b"\x01", b"\x04"
"""The types of keys: Ed25519, and Ed25519 of a witness, which signs the time as well."""
LAST_SECOND = 1 << 37
"""Beyond it there is no calendar."""


@dataclass(frozen=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes
    key: Key
    cosigned: tuple[str, ...]
    """By which witnesses, and when."""


def open_checkpoint(note: str, ring: KeyRing, witnesses: Sequence[str] = ()) -> Checkpoint:
    """Read a checkpoint and check each of its signatures; one that cannot be checked is a reason to reject it."""
    text, gap, signatures = note.partition("\n\n")
    lines, text = text.split("\n"), f"{text}\n"
    if not gap or len(lines) != 3 or not re.fullmatch(r"0|[1-9][0-9]{0,18}", lines[1]) or note[-1:] != "\n":
        raise Rejected("the checkpoint is not a signed note of a log")
    ours: list[Key] = []
    known = {_witness_name(vkey): vkey for vkey in (*ring.witnesses, *witnesses)}
    cosigned: dict[str, str] = {}
    for line in signatures[:-1].split("\n"):
        mark, name, signature = (*line.split(" "), "", "")[:3]
        if mark != "\u2014" or line.count(" ") != 2:
            raise Rejected("a signature of the checkpoint cannot be read")
        if name == lines[0]:
            ours.append(_check_note(name, decode_base64(signature, "checkpoint's signature"), text.encode(), ring))
        elif name in known and name not in cosigned:
            cosigned[name] = _check_cosignature(known[name], decode_base64(signature, "cosignature"), text.encode())
        else:
            raise Rejected(f"the checkpoint has a signature by {name!r} that cannot be checked; give its key")
    if len(ours) != 1:
        raise Rejected("the checkpoint is not signed by the log itself, once")
    missing = [_witness_name(vkey) for vkey in witnesses if _witness_name(vkey) not in cosigned]
    if missing:
        raise Rejected(f"the checkpoint was not cosigned by {', '.join(missing)}")
    root = decode_base64(lines[2], "root of the checkpoint")
    return Checkpoint(lines[0], int(lines[1]), root, ours[0], tuple(cosigned.values()))


def _check_note(name: str, signature: bytes, text: bytes, ring: KeyRing) -> Key:
    for key in ring.keys.values():
        if signature[:4] == _note_key_hash(name, NOTE_KEY, key.public.public_bytes_raw()):
            if not is_signed(key.public, signature[4:], text):
                raise Rejected("the checkpoint's signature does not fit its content: one of them was changed")
            return key
    raise Rejected("the checkpoint was signed by a key that is not at hand; fetch the list of keys")


def _check_cosignature(vkey: str, signature: bytes, text: bytes) -> str:
    name, public = _open_vkey(vkey)
    time = int.from_bytes(signature[4:12], "big")
    signed = b"cosignature/v1\ntime %d\n" % time + text
    whose = signature[:4] == _note_key_hash(name, WITNESS_KEY, public.public_bytes_raw())
    if not whose or time >= LAST_SECOND or not is_signed(public, signature[12:], signed):
        raise Rejected(f"the cosignature of {name} does not fit the checkpoint")
    return f"{name} witnessed it at {datetime.fromtimestamp(time, UTC).isoformat()}"


def _open_vkey(vkey: str) -> tuple[str, Ed25519PublicKey]:
    """As C2SP writes keys: name+hash+base64 of type and key."""
    name, _, rest = vkey.partition("+")
    material = decode_base64(rest.partition("+")[2], "key of a witness")
    if material[:1] != WITNESS_KEY or len(material) != 33:
        raise Rejected(f"{vkey!r} is not the key of a witness (name+hash+key, of type Ed25519 cosignature)")
    return name, Ed25519PublicKey.from_public_bytes(material[1:])


def _witness_name(vkey: str) -> str:
    return vkey.partition("+")[0]


def _note_key_hash(name: str, key_type: bytes, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + key_type + public).digest()[:4]
