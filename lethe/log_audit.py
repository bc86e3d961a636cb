"""Replaying the whole log: whoever kept a checkpoint learns whether anything before it was changed since.

A mirror is a folder: `entries.ndjson` has the entries as they were hashed, one a line; `checkpoints/` every checkpoint
that was seen, under its size; `keys.json` the list of keys.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lethe.verify.checkpoints import Checkpoint, open_checkpoint
from lethe.verify.keys import KeyRing, load_keys
from lethe.verify.merkle import leaf_hash, node_hash
from lethe.verify.reading import Rejected, parse_object, text_at

ENTRIES, CHECKPOINTS, KEYS = "entries.ndjson", "checkpoints", "keys.json"
NOTE = re.compile(r"[^\n]+\n\d+\n[^\n]+\n\n(?:\u2014 [^\n]+\n)+")
EMPTY_ROOT = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


@dataclass
class Growing:
    """A Merkle tree that keeps only the roots of its whole parts: so many as the size has ones in binary."""

    size: int = 0
    _parts: list[bytes] = field(default_factory=list)

    def add(self, leaf: bytes) -> None:
        self._parts.append(leaf_hash(leaf))
        self.size += 1
        merged = self.size
        while merged % 2 == 0:
            right = self._parts.pop()
            self._parts[-1] = node_hash(self._parts[-1], right)
            merged //= 2

    @property
    def root(self) -> bytes:
        if not self._parts:
            return EMPTY_ROOT
        root = self._parts[-1]
        for left in reversed(self._parts[:-1]):
            root = node_hash(left, root)
        return root


@dataclass(frozen=True)
class Replayed:
    entries: int
    checkpoints: int
    actions: Mapping[str, int]


def replay(leaves: Iterable[bytes], checkpoints: Sequence[Checkpoint]) -> Replayed:
    """Hash all entries anew; raises Rejected at the first checkpoint that they do not lead to."""
    if len({checkpoint.origin for checkpoint in checkpoints}) > 1:
        raise Rejected("the checkpoints are of different logs")
    waiting = sorted(checkpoints, key=lambda checkpoint: checkpoint.size)
    tree, actions = Growing(), Counter[str]()
    _compare(tree, waiting)
    for leaf in leaves:
        tree.add(leaf)
        actions[text_at(parse_object(leaf, f"entry {tree.size - 1}"), "action")] += 1
        _compare(tree, waiting)
    if waiting:
        raise Rejected(f"the log has {tree.size} entries, but a checkpoint says {waiting[0].size}: the rest is missing")
    return Replayed(tree.size, len(checkpoints), dict(actions))


def audit_mirror(folder: Path, keys: bytes | None = None, published: Iterable[str] = ()) -> Replayed:
    """Replay a mirror against every checkpoint in it and against those `published` elsewhere.

    With `keys` given these are trusted, and not the list in the mirror.
    """
    ring = load_keys(keys if keys is not None else (folder / KEYS).read_bytes())
    kept = [path.read_text() for path in (folder / CHECKPOINTS).glob("*.txt")]
    checkpoints = list(_opened([*kept, *published], ring))
    if not checkpoints:
        raise Rejected("there is no checkpoint to compare the log with")
    with (folder / ENTRIES).open("rb") as lines:
        return replay((line.rstrip(b"\n") for line in lines), checkpoints)


def notes_in(text: str) -> list[str]:
    """The checkpoints in a file to which a Lethe publishes them, one after the other."""
    return NOTE.findall(text)


def entry_count(folder: Path) -> int:
    """Of a mirror. A line that was cut off by a crash is taken away first."""
    path = folder / ENTRIES
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    return whole.count(b"\n")


def told(found: Replayed) -> list[str]:
    """For people."""
    kinds = ", ".join(f"{count} {action}" for action, count in sorted(found.actions.items()))
    return [
        f"{found.entries} entries lead to each of {found.checkpoints} signed checkpoints",
        f"the last checkpoint covers all of them: {kinds}" if kinds else "the log is empty",
    ]


def facts(found: Replayed) -> str:
    """For machines."""
    return json.dumps({"verified": True, **vars(found)})


def _compare(tree: Growing, waiting: list[Checkpoint]) -> None:
    while waiting and waiting[0].size == tree.size:
        if waiting.pop(0).root != tree.root:
            raise Rejected(f"the first {tree.size} entries are not those of the checkpoint: the log was rewritten")


def _opened(notes: Iterable[str], ring: KeyRing) -> Iterator[Checkpoint]:
    seen: dict[int, str] = {}
    for note in notes:
        checkpoint = open_checkpoint(note, ring)
        body = note.partition("\n\n")[0]
        if seen.setdefault(checkpoint.size, body) != body:
            raise Rejected(f"there are two checkpoints of size {checkpoint.size} that differ: the log was split")
        yield checkpoint
