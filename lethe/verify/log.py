"""A statement's place in the log: its entry, the proof that the entry is in the tree, and the signed checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .checkpoints import Checkpoint, open_checkpoint
from .keys import KeyRing
from .merkle import is_consistent, leaf_hash, root_from_inclusion
from .reading import Rejected, hash_at, hashes_at, object_at, text_at, time_at, whole_at
from .statements import Kind
from .strict_json import parse_object

MAX_LATER_BYTES = 1 << 20


@dataclass(frozen=True)
class Inclusion:
    """Where the log holds a statement."""

    at: datetime
    """Date of the entry."""
    index: int
    checkpoint: Checkpoint
    later: Checkpoint | None
    """A later checkpoint that continues it."""

    @property
    def checks(self) -> list[str]:
        first = self.checkpoint
        record = f"entry {self.index} of the log {first.origin} at {first.size} entries records it"
        consistency = (
            [f"the log at {self.later.size} entries (key {self.later.key.key_id[:12]}) is consistent with it"]
            if self.later
            else []
        )
        return [record, *map(str, first.cosignatures), *consistency]


def find_place(
    log: Mapping[str, Any],
    kind: Kind,
    predicate: Mapping[str, Any],
    payload: bytes,
    ring: KeyRing,
    witnesses: Sequence[str],
    later: bytes | None,
) -> Inclusion:
    """Check the bundle's member `log`, and that it belongs to this statement."""
    checkpoint = open_checkpoint(text_at(log, "checkpoint"), ring, witnesses)
    at = check_place(log, checkpoint, kind, predicate, payload)
    newer = None if later is None else _open_later(checkpoint, later, ring.with_witnesses(witnesses))
    return Inclusion(at, whole_at(log, "index"), checkpoint, newer)


def check_place(
    log: Mapping[str, Any], checkpoint: Checkpoint, kind: Kind, predicate: Mapping[str, Any], payload: bytes
) -> datetime:
    """Check that the entry is that of this statement and in the checkpoint's tree. Return the entry's date."""
    if set(log) != {"checkpoint", "entry", "index", "proof"}:
        raise Rejected("the bundle's place in the log does not have the expected members")
    text, index = text_at(log, "entry").encode(), whole_at(log, "index")
    require_origin(predicate, checkpoint.origin)
    at = _check_entry(text, kind, predicate, payload)
    checkpoint.key.require_trusted(at)
    if root_from_inclusion(leaf_hash(text), index, checkpoint.size, hashes_at(log, "proof")) != checkpoint.root:
        raise Rejected("the proof does not lead from the entry to the root of the log")
    return at


def require_origin(predicate: Mapping[str, Any], origin: str | None) -> None:
    """Check that the statement names this log. Earlier certificates name none."""
    named = text_at(object_at(predicate, "log"), "origin") if "log" in predicate else None
    if named is not None and origin is not None and named != origin:
        raise Rejected(f"the statement is of the log {named!r}, not of {origin!r}")


def _check_entry(text: bytes, kind: Kind, predicate: Mapping[str, Any], payload: bytes) -> datetime:
    """Check that the entry is that of this statement, and return its date."""
    entry = parse_object(text, "the entry in the log")
    details, at = object_at(entry, "details"), time_at(entry, "at")
    if (entry.get("action"), entry.get("concerns")) != (kind.action, text_at(predicate, kind.concerns)):
        raise Rejected(f"the entry in the log is not that of this {kind.name}")
    if kind.promises_entry:
        _check_promise(text, at, predicate)
    elif details.get("statement") != hashlib.sha256(payload).hexdigest():
        raise Rejected("the entry in the log is of another statement")
    if at < time_at(predicate, kind.signed_at):
        raise Rejected("the entry in the log is dated before the statement")
    return at


def _check_promise(text: bytes, at: datetime, predicate: Mapping[str, Any]) -> None:
    """Check that the entry is the one that a receipt promised, dated within the promised time."""
    promise = object_at(predicate, "log")
    if hash_at(promise, "leaf") != leaf_hash(text):
        raise Rejected("the entry in the log is not the one that the receipt promised")
    microseconds = (at - time_at(predicate, "received_at")) // timedelta(microseconds=1)
    if microseconds > whole_at(promise, "within_seconds") * 1_000_000:
        raise Rejected(f"the entry in the log is dated {at.isoformat()}, later than the receipt promised")


def _open_later(checkpoint: Checkpoint, later: bytes, ring: KeyRing) -> Checkpoint:
    if len(later) > MAX_LATER_BYTES:
        raise Rejected("the proof of a later checkpoint is too large")
    proof = parse_object(later, "the proof of a later checkpoint")
    newer = open_checkpoint(text_at(proof, "checkpoint"), ring)
    if newer.origin != checkpoint.origin or newer.size < checkpoint.size:
        raise Rejected("the later checkpoint is of another log, or is not later")
    if not is_consistent(checkpoint.size, checkpoint.root, newer.size, newer.root, hashes_at(proof, "proof")):
        raise Rejected(
            f"the proof does not lead from the bundle's {checkpoint.size} entries to the later checkpoint: "
            f"it was asked for with another size than old={checkpoint.size}, or the log was rewritten"
        )
    return newer
