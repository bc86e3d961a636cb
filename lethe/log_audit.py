"""Replay of the whole log against checkpoints: any change to an entry that a checkpoint covers is found.

A mirror is a folder: `entries.ndjson` holds the entries as they were hashed, one per line; `checkpoints/` every
checkpoint received, named by its size; `keys.json` the list of keys.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lethe.key_history import KeyHistory
from lethe.verify.checkpoints import Checkpoint, open_checkpoint
from lethe.verify.keys import KeyRing, load_keys
from lethe.verify.merkle import leaf_hash, node_hash
from lethe.verify.reading import Rejected, text_at
from lethe.verify.strict_json import parse_object

ENTRIES, CHECKPOINTS, KEYS = "entries.ndjson", "checkpoints", "keys.json"
NOTE = re.compile(r"[^\n]+\n\d+\n[^\n]+\n\n(?:\u2014 [^\n]+\n)+")
EMPTY_ROOT = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


@dataclass
class GrowingTree:
    """Merkle tree that keeps only the roots of its complete subtrees: one for each 1 in the binary size."""

    size: int = 0
    _subtrees: list[bytes] = field(default_factory=list)

    def add(self, leaf: bytes) -> None:
        self._subtrees.append(leaf_hash(leaf))
        self.size += 1
        merged = self.size
        while merged % 2 == 0:
            right = self._subtrees.pop()
            self._subtrees[-1] = node_hash(self._subtrees[-1], right)
            merged //= 2

    @property
    def root(self) -> bytes:
        if not self._subtrees:
            return EMPTY_ROOT
        root = self._subtrees[-1]
        for left in reversed(self._subtrees[:-1]):
            root = node_hash(left, root)
        return root


@dataclass(frozen=True)
class Replayed:
    entries: int
    checkpoints: int
    actions: Mapping[str, int]


def replay(
    leaves: Iterable[bytes], checkpoints: Sequence[Checkpoint], key_history: KeyHistory | None = None
) -> Replayed:
    """Hash all entries. Raises Rejected at the first checkpoint that they do not lead to.

    `key_history` collects what they say about keys.
    """
    if len({checkpoint.origin for checkpoint in checkpoints}) > 1:
        raise Rejected("the checkpoints are of different logs")
    pending = sorted(checkpoints, key=lambda checkpoint: checkpoint.size)
    tree, actions = GrowingTree(), Counter[str]()
    _compare(tree, pending)
    for leaf in leaves:
        tree.add(leaf)
        entry = parse_object(leaf, f"entry {tree.size - 1}")
        actions[text_at(entry, "action")] += 1
        if key_history is not None:
            key_history.read_entry(entry)
        _compare(tree, pending)
    if pending:
        raise Rejected(f"the log has {tree.size} entries, but a checkpoint covers {pending[0].size}: some are missing")
    return Replayed(tree.size, len(checkpoints), dict(actions))


def audit_mirror(folder: Path, keys: bytes | None = None, published: Iterable[str] = ()) -> Replayed:
    """Replay a mirror against all of its checkpoints and those `published` elsewhere, and compare its list of keys.

    `keys`, if given, replaces that list. Bare public keys have no dates to compare.
    """
    ring = load_keys(keys if keys is not None else (folder / KEYS).read_bytes())
    stored = [path.read_text() for path in (folder / CHECKPOINTS).glob("*.txt")]
    checkpoints = list(_open_checkpoints([*stored, *published], ring))
    if not checkpoints:
        raise Rejected("no checkpoint to compare the log with")
    with (folder / ENTRIES).open("rb") as lines:
        key_history = KeyHistory()
        replayed = replay((line.rstrip(b"\n") for line in lines), checkpoints, key_history)
    if ring.origin is not None:
        key_history.compare(ring)
    return replayed


def split_checkpoints(text: str) -> list[str]:
    """Return the checkpoints in a file to which Lethe appends them."""
    return NOTE.findall(text)


def entry_count(folder: Path) -> int:
    """Return the number of entries in a mirror, after removing a last line that a crash cut off."""
    path = folder / ENTRIES
    if not path.exists():
        return 0
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        path.write_bytes(complete)
    return complete.count(b"\n")


def describe(replayed: Replayed) -> list[str]:
    """Return the result as lines of text."""
    actions = ", ".join(f"{count} {action}" for action, count in sorted(replayed.actions.items()))
    return [
        f"{replayed.entries} entries match all {replayed.checkpoints} signed checkpoints",
        f"entries by action: {actions}" if actions else "the log is empty",
    ]


def to_json(replayed: Replayed) -> str:
    """Return the result as JSON."""
    return json.dumps({"verified": True, **vars(replayed)})


def _compare(tree: GrowingTree, pending: list[Checkpoint]) -> None:
    while pending and pending[0].size == tree.size:
        if pending.pop(0).root != tree.root:
            raise Rejected(f"the first {tree.size} entries do not match the checkpoint: the log was rewritten")


def _open_checkpoints(notes: Iterable[str], ring: KeyRing) -> Iterator[Checkpoint]:
    bodies: dict[int, str] = {}
    for note in notes:
        checkpoint = open_checkpoint(note, ring)
        body = note.partition("\n\n")[0]
        if bodies.setdefault(checkpoint.size, body) != body:
            raise Rejected(f"two checkpoints of size {checkpoint.size} differ: the log was split")
        yield checkpoint
