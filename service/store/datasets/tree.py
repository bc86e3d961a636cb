"""What a data set is committed to: a Merkle tree over its records, and the proof that some were there and are no more.

A record's commitment hides it behind a salt that is erased with it. The leaves stand in the order of the commitments,
so that two neighbours show that nothing is between them. Hashing is that of RFC 6962.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.datasets.dataset import Dataset

RECORD_PREFIX, LEAF_PREFIX, NODE_PREFIX = b"lethe-record-v1\0", b"\0", b"\1"
HASH = 32
AT_ONCE = 1 << 24
"""Bytes of rows that are laid out for hashing at once: all of them would be another copy of the data set."""


def commitments(dataset: Dataset) -> list[bytes]:
    """Of each record, in the order of the rows."""
    fields = _fields(dataset)
    step = max(1, AT_ONCE // sum(field.shape[1] for field in fields))
    found: list[bytes] = []
    for start in range(0, len(dataset.records), step):
        rows = np.concatenate([field[start : start + step] for field in fields], axis=1)
        found += _hashes(RECORD_PREFIX, rows.tobytes(), rows.shape[1])
    return found


@dataclass(frozen=True, eq=False)
class DatasetTree:
    """A place is that of a commitment among all, in ascending order."""

    ascending: NDArray[np.bytes_]  # [n], 32 bytes each
    numbers: NDArray[np.int64]  # [n], the record at each place
    by_number: NDArray[np.intp]  # [n], the places in the order of the record numbers
    levels: Sequence[bytes]
    """From the leaves' hashes up to the root. Node i of level k is the root over the 2^k places from i·2^k on, or over
    as many of them as there are."""

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetTree:
        found = np.frombuffer(b"".join(commitments(dataset)), f"S{HASH}")
        order = found.argsort()
        ascending, numbers = found[order], dataset.records[order]
        return cls(ascending, numbers, numbers.argsort(), _levels(ascending.tobytes()))

    @property
    def root(self) -> str:
        return self.levels[-1].hex()

    @property
    def records(self) -> int:
        return len(self.numbers)

    def commitment(self, place: int) -> bytes:
        """Not by indexing alone, at which numpy drops zeros from the end."""
        return self.ascending[place : place + 1].tobytes()

    def place(self, commitment: bytes) -> int:
        """Where it stands, or would stand if it were there."""
        return int(np.searchsorted(self.ascending, np.frombuffer(commitment, f"S{HASH}"))[0])

    def places_of(self, records: Collection[int]) -> list[int]:
        """Ascending. Raises ValueError unless all are there."""
        wanted = np.fromiter(records, np.int64, len(records))
        ranks = np.searchsorted(self.numbers, wanted, sorter=self.by_number)
        places = self.by_number.take(ranks, mode="clip")
        if not np.array_equal(self.numbers[places], wanted):
            raise ValueError("a record to be proved forgotten is not in the data set")
        return sorted(places.tolist())

    def prove(self, indices: Iterable[int]) -> list[str]:
        """The hashes that lead from the commitments at these places to the root: of each largest subtree without any of
        these places its root, from left to right."""
        known, found = set(indices), []
        for level, hashes in enumerate(self.levels[:-1]):
            for node in known:
                other = node ^ 1
                if other not in known and HASH * other < len(hashes):
                    found.append((other << level, hashes[HASH * other : HASH * (other + 1)].hex()))
            known = {node >> 1 for node in known}
        return [root for _, root in sorted(found)]


def forgotten_proof(before: DatasetTree, after: DatasetTree, records: Collection[int]) -> dict[str, Any]:
    """That these records were in one data set and are not in the other. Raises ValueError where it is not so."""
    places = before.places_of(records)
    forgotten = [before.commitment(place) for place in places]
    neighbours = sorted({place for commitment in forgotten for place in _around(after, commitment)})
    around = [{"place": place, "commitment": after.commitment(place).hex()} for place in neighbours]
    return {
        "commitments": [commitment.hex() for commitment in forgotten],
        "before": {"places": places, "proof": before.prove(places)},
        "after": {"neighbours": around, "proof": after.prove(neighbours)},
    }


def _around(tree: DatasetTree, absent: bytes) -> list[int]:
    """The places beside the one that it would have: two, or one at either end."""
    place = tree.place(absent)
    if place < tree.records and tree.commitment(place) == absent:
        raise ValueError("a record to be proved forgotten is still in the data set")
    return [beside for beside in (place - 1, place) if 0 <= beside < tree.records]


def _fields(dataset: Dataset) -> list[NDArray[np.uint8]]:
    """What is hashed of each record, as columns of bytes, side by side."""
    fields = [dataset.salts, _bytes_of(dataset.records.astype(">u8"))]
    for name in sorted(dataset.arrays):
        label = np.frombuffer(name.encode() + b"\0", np.uint8)
        fields += [np.broadcast_to(label, (len(dataset.records), len(label))), _bytes_of(dataset.arrays[name])]
    return fields


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """As the data set's file has them, little-endian: what is float32 there is hashed as float32."""
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)


def _hashes(prefix: bytes, content: bytes, width: int) -> list[bytes]:
    """The SHA-256 of each `width` bytes. Nearly all the time goes into this loop."""
    return [sha256(prefix + content[at : at + width]).digest() for at in range(0, len(content), width)]


def _levels(ascending: bytes) -> list[bytes]:
    levels = [b"".join(_hashes(LEAF_PREFIX, ascending, HASH))]
    while len(levels[-1]) > HASH:
        below = levels[-1]
        paired = len(below) // (2 * HASH) * (2 * HASH)
        # An odd one at the end moves up as it is: so every size is split as RFC 6962 splits it.
        levels.append(b"".join(_hashes(NODE_PREFIX, below[:paired], 2 * HASH)) + below[paired:])
    return levels
