"""Checkpoints of the log: C2SP signed notes, signed by the log and cosigned by witnesses."""

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
"""C2SP key types: Ed25519, and Ed25519 of a witness, which also signs the time."""
MAX_TIMESTAMP = 1 << 37
"""Seconds since 1970 that a datetime can still hold."""


@dataclass(frozen=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes
    key: Key
    cosignatures: tuple[str, ...]
    """A line for each witness, with the time of its signature."""


def open_checkpoint(note: str, ring: KeyRing, witnesses: Sequence[str] = ()) -> Checkpoint:
    """Read a checkpoint and check all of its signatures. One that cannot be checked is a reason to reject it."""
    text, gap, signatures = note.partition("\n\n")
    lines, text = text.split("\n"), f"{text}\n"
    if not gap or len(lines) != 3 or not re.fullmatch(r"0|[1-9][0-9]{0,18}", lines[1]) or note[-1:] != "\n":
        raise Rejected("the checkpoint is not a signed note of a log")
    log_keys: list[Key] = []
    witness_keys = {_witness_name(vkey): vkey for vkey in (*ring.witnesses, *witnesses)}
    cosignatures: dict[str, str] = {}
    for line in signatures[:-1].split("\n"):
        mark, name, signature = (*line.split(" "), "", "")[:3]
        if mark != "\u2014" or line.count(" ") != 2:
            raise Rejected("a signature of the checkpoint cannot be read")
        if name == lines[0]:
            log_keys.append(_check_note(name, decode_base64(signature, "checkpoint's signature"), text.encode(), ring))
        elif name in witness_keys and name not in cosignatures:
            cosignature = decode_base64(signature, "cosignature")
            cosignatures[name] = _check_cosignature(witness_keys[name], cosignature, text.encode())
        else:
            raise Rejected(f"the checkpoint has a signature by {name!r} that cannot be checked; pass its key")
    if len(log_keys) != 1:
        raise Rejected("the checkpoint does not have exactly one signature by the log")
    missing = [_witness_name(vkey) for vkey in witnesses if _witness_name(vkey) not in cosignatures]
    if missing:
        raise Rejected(f"the checkpoint is not cosigned by {', '.join(missing)}")
    root = decode_base64(lines[2], "root of the checkpoint")
    return Checkpoint(lines[0], int(lines[1]), root, log_keys[0], tuple(cosignatures.values()))


def _check_note(name: str, signature: bytes, text: bytes, ring: KeyRing) -> Key:
    for key in ring.keys.values():
        if signature[:4] == _note_key_hash(name, NOTE_KEY, key.public.public_bytes_raw()):
            if not is_signed(key.public, signature[4:], text):
                raise Rejected("the checkpoint's signature does not match its content: one of them was changed")
            return key
    raise Rejected("the checkpoint is signed by a key that was not given; fetch the list of keys")


def _check_cosignature(vkey: str, signature: bytes, text: bytes) -> str:
    name, public = _open_vkey(vkey)
    time = int.from_bytes(signature[4:12], "big")
    signed = b"cosignature/v1\ntime %d\n" % time + text
    is_theirs = signature[:4] == _note_key_hash(name, WITNESS_KEY, public.public_bytes_raw())
    if not is_theirs or time >= MAX_TIMESTAMP or not is_signed(public, signature[12:], signed):
        raise Rejected(f"the cosignature of {name} does not match the checkpoint")
    return f"cosigned by witness {name} at {datetime.fromtimestamp(time, UTC).isoformat()}"


def _open_vkey(vkey: str) -> tuple[str, Ed25519PublicKey]:
    """Read a C2SP verifier key: name+hash+base64 of type and key."""
    name, _, encoded = vkey.partition("+")
    material = decode_base64(encoded.partition("+")[2], "key of a witness")
    if material[:1] != WITNESS_KEY or len(material) != 33:
        raise Rejected(f"{vkey!r} is not the key of a witness (name+hash+key, of type Ed25519 cosignature)")
    return name, Ed25519PublicKey.from_public_bytes(material[1:])


def _witness_name(vkey: str) -> str:
    return vkey.partition("+")[0]


def _note_key_hash(name: str, key_type: bytes, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + key_type + public).digest()[:4]
