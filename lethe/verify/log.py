"""Place of a statement in the log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .checkpoints import Checkpoint, open_checkpoint
from .keys import KeyRing
from .merkle import is_consistent, leaf_hash, root_from_inclusion
from .reading import Rejected, hashes_at, object_at, parse_object, text_at, time_at, whole_at
from .statements import Kind


def check_log(
    bundle: Mapping[str, Any],
    kind: Kind,
    predicate: Mapping[str, Any],
    payload: bytes,
    ring: KeyRing,
    witnesses: Sequence[str],
    later: bytes | None,
) -> list[str]:
    if "log" not in bundle:
        if kind.is_always_logged or later is not None or witnesses:
            raise Rejected("the bundle does not show its place in the log; download it again")
        return ["not yet in the log; download it again in a few seconds"]
    log = object_at(bundle, "log")
    if set(log) != {"checkpoint", "entry", "index", "proof"}:
        raise Rejected("the bundle's place in the log does not have the expected members")
    text, index = text_at(log, "entry").encode(), whole_at(log, "index")
    checkpoint = open_checkpoint(text_at(log, "checkpoint"), ring, witnesses)
    entry = _check_entry(text, kind, predicate, payload)
    trust = checkpoint.key.trusted_at(time_at(entry, "at"))
    if root_from_inclusion(leaf_hash(text), index, checkpoint.size, hashes_at(log, "proof")) != checkpoint.root:
        raise Rejected("the proof does not lead from the entry to the root of the log")
    inclusion = f"entry {index} of the log {checkpoint.origin} at {checkpoint.size} entries records it{trust}"
    consistency = [] if later is None else [_check_later(checkpoint, later, ring)]
    return [inclusion, *checkpoint.cosignatures, *consistency]


def _check_entry(text: bytes, kind: Kind, predicate: Mapping[str, Any], payload: bytes) -> Mapping[str, Any]:
    """Check that the entry is that of this statement."""
    entry = parse_object(text, "the entry in the log")
    details = object_at(entry, "details")
    if (entry.get("action"), entry.get("concerns")) != (kind.action, text_at(predicate, kind.concerns)):
        raise Rejected(f"the entry in the log is not that of this {kind.name}")
    if kind.action == "deletion.received":
        if object_at(predicate, "log").get("leaf") != leaf_hash(text).hex():
            raise Rejected("the entry in the log is not the one that the receipt promised")
    elif details.get("statement") != hashlib.sha256(payload).hexdigest():
        raise Rejected("the entry in the log is of another statement")
    return entry


def _check_later(checkpoint: Checkpoint, later: bytes, ring: KeyRing) -> str:
    proof = parse_object(later, "the proof of a later checkpoint")
    newer = open_checkpoint(text_at(proof, "checkpoint"), ring)
    if newer.origin != checkpoint.origin or newer.size < checkpoint.size:
        raise Rejected("the later checkpoint is of another log, or is not later")
    if not is_consistent(checkpoint.size, checkpoint.root, newer.size, newer.root, hashes_at(proof, "proof")):
        raise Rejected("the log was rewritten: the later checkpoint does not continue the one in the bundle")
    return f"the log at {newer.size} entries (key {newer.key.key_id[:12]}) is consistent with it"
