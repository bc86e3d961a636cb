"""Checkpoints of the log: C2SP signed notes, signed by the log and cosigned by witnesses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .keys import LOG, Key, KeyRing
from .reading import Rejected, decode_base64, is_signed

NOTE_KEY, WITNESS_KEY = b"\x01", b"\x04"
"""C2SP key types: Ed25519, and Ed25519 of a witness, which also signs the time."""
MAX_TIMESTAMP = 1 << 37
"""Seconds since 1970 that a datetime can still hold."""
NAME = r"[^\s+]+"
NOTE = re.compile(
    rf"(?P<text>(?P<origin>{NAME})\n(?P<size>0|[1-9][0-9]{{0,14}})\n(?P<root>[^\n]+)\n)\n(?P<signatures>(?:[^\n]+\n)+)",
    re.ASCII,
)
SIGNATURE = re.compile(rf"\u2014 ({NAME}) ([A-Za-z0-9+/=]+)", re.ASCII)


@dataclass(frozen=True)
class Cosignature:
    witness: str
    at: datetime

    def __str__(self) -> str:
        return f"cosigned by witness {self.witness} at {self.at.isoformat()}"


@dataclass(frozen=True)
class Checkpoint:
    origin: str
    size: int
    root: bytes
    key: Key
    cosignatures: tuple[Cosignature, ...]


def open_checkpoint(note: str, ring: KeyRing, witnesses: Sequence[str] = ()) -> Checkpoint:
    """Read a checkpoint and check all of its signatures. One that cannot be checked is a reason to reject it."""
    match = NOTE.fullmatch(note)
    root = decode_base64(match["root"], "root of the checkpoint") if match else b""
    if match is None or len(root) != 32:
        raise Rejected("the checkpoint is not a signed note of a log")
    if ring.origin not in (None, match["origin"]):
        raise Rejected(f"the checkpoint is of the log {match['origin']!r}, the keys are of {ring.origin!r}")
    log_keys: list[Key] = []
    cosignatures: dict[str, Cosignature] = {}
    witness_keys = dict(_open_vkey(vkey) for vkey in (*ring.witnesses, *witnesses))
    for name, signature in _signatures(match["signatures"]):
        if name == match["origin"]:
            log_keys.append(_check_note(name, signature, match["text"].encode(), ring))
        else:
            identity = f"{name}+{signature[:4].hex()}"
            if identity in cosignatures:
                raise Rejected(f"the checkpoint has two cosignatures by {name}")
            cosignatures[identity] = _check_cosignature(identity, signature, match["text"].encode(), witness_keys)
    if len(log_keys) != 1:
        raise Rejected("the checkpoint does not have exactly one signature by the log")
    _require_cosigned(witnesses, cosignatures)
    return Checkpoint(match["origin"], int(match["size"]), root, log_keys[0], tuple(cosignatures.values()))


def _signatures(lines: str) -> Iterable[tuple[str, bytes]]:
    for line in lines[:-1].split("\n"):
        match = SIGNATURE.fullmatch(line)
        if match is None:
            raise Rejected("a signature of the checkpoint cannot be read")
        yield match[1], decode_base64(match[2], "signature of the checkpoint")


def _check_note(name: str, signature: bytes, text: bytes, ring: KeyRing) -> Key:
    named = [key for key in ring.keys.values() if signature[:4] == note_key_hash(name, NOTE_KEY, key.public)]
    if not named:
        raise Rejected("the checkpoint is signed by a key that was not given; fetch the list of keys")
    for key in named:
        if is_signed(key.public, signature[4:], text):
            if not key.may_sign(LOG):
                raise Rejected("the checkpoint is signed by a key that is not for the log")
            return key
    raise Rejected("the checkpoint's signature does not match its content: one of them was changed")


def _check_cosignature(
    identity: str, signature: bytes, text: bytes, witness_keys: Mapping[str, Ed25519PublicKey]
) -> Cosignature:
    name = identity.partition("+")[0]
    if identity not in witness_keys:
        raise Rejected(f"the checkpoint has a signature by {name!r} that cannot be checked; pass its key")
    time = int.from_bytes(signature[4:12], "big")
    signed = b"cosignature/v1\ntime %d\n" % time + text
    if time >= MAX_TIMESTAMP or not is_signed(witness_keys[identity], signature[12:], signed):
        raise Rejected(f"the cosignature of {name} does not match the checkpoint")
    return Cosignature(name, datetime.fromtimestamp(time, UTC))


def _require_cosigned(witnesses: Sequence[str], cosignatures: Mapping[str, Cosignature]) -> None:
    missing = [vkey for vkey in witnesses if _open_vkey(vkey)[0] not in cosignatures]
    if missing:
        raise Rejected(f"the checkpoint is not cosigned by {', '.join(vkey.partition('+')[0] for vkey in missing)}")


def _open_vkey(vkey: str) -> tuple[str, Ed25519PublicKey]:
    """Read a C2SP verifier key: name+hash+base64 of type and key. Return name+hash and the key."""
    match = re.fullmatch(rf"(({NAME})\+[0-9a-f]{{8}})\+([A-Za-z0-9+/=]+)", vkey, re.ASCII)
    material = decode_base64(match[3], "key of a witness") if match else b""
    if match is None or material[:1] != WITNESS_KEY or len(material) != 33:
        raise Rejected(f"{vkey!r} is not the key of a witness (name+hash+key, of type Ed25519 cosignature)")
    public = Ed25519PublicKey.from_public_bytes(material[1:])
    if match[1] != f"{match[2]}+{note_key_hash(match[2], WITNESS_KEY, public).hex()}":
        raise Rejected(f"{vkey!r} has a wrong hash: it was not copied whole")
    return match[1], public


def note_key_hash(name: str, key_type: bytes, public: Ed25519PublicKey) -> bytes:
    """Return the hash by which a note names the key of a signature."""
    return hashlib.sha256(name.encode() + b"\n" + key_type + public.public_bytes_raw()).digest()[:4]
