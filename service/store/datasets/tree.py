"""Merkle tree over the records of a data set, and the proof that records were there before and are not any more.

A record's commitment hides it behind a salt that is erased with it. The leaves are in ascending order of the
commitments, so that two neighbours prove that nothing lies between them. Hashing follows RFC 6962.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.datasets.dataset import Dataset
from vocabulary.certificate import AbsenceProof, ForgottenProof, Neighbour, PresenceProof

RECORD_PREFIX, LEAF_PREFIX, NODE_PREFIX = b"lethe-record-v1\0", b"\0", b"\1"
HASH = 32
AT_ONCE = 1 << 24
"""Bytes of rows prepared for hashing at once. All rows together would be another copy of the data set."""


def commit_records(dataset: Dataset) -> list[bytes]:
    """Return the commitment of each record, in row order."""
    fields = _fields(dataset)
    step = max(1, AT_ONCE // sum(field.shape[1] for field in fields))
    commitments: list[bytes] = []
    for start in range(0, len(dataset.records), step):
        rows = np.concatenate([field[start : start + step] for field in fields], axis=1)
        commitments += _hashes(RECORD_PREFIX, rows.tobytes(), rows.shape[1])
    return commitments


@dataclass(frozen=True, eq=False)
class DatasetTree:
    """Merkle tree over commitments. A position is a commitment's index in ascending order."""

    ascending: NDArray[np.bytes_]  # [n], 32 bytes each
    numbers: NDArray[np.int64]  # [n], the record number at each position
    by_number: NDArray[np.intp]  # [n], the positions in the order of the record numbers
    levels: Sequence[bytes]
    """Levels from the leaf hashes up to the root. Node i of level k is the root over the 2^k positions from i·2^k on,
    or over as many of them as exist."""

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> DatasetTree:
        commitments = np.frombuffer(b"".join(commit_records(dataset)), f"S{HASH}")
        order = commitments.argsort()
        ascending, numbers = commitments[order], dataset.records[order]
        return cls(ascending, numbers, numbers.argsort(), _levels(ascending.tobytes()))

    @property
    def root(self) -> str:
        return self.levels[-1].hex()

    @property
    def records(self) -> int:
        return len(self.numbers)

    def commitment(self, position: int) -> bytes:
        """Return the commitment at a position. A slice, because numpy drops trailing zeros of a single item."""
        return self.ascending[position : position + 1].tobytes()

    def position(self, commitment: bytes) -> int:
        """Return the position of a commitment, or where it would be inserted."""
        return int(np.searchsorted(self.ascending, np.frombuffer(commitment, f"S{HASH}"))[0])

    def positions_of(self, records: Collection[int]) -> list[int]:
        """Return the positions of records, ascending. Raise ValueError unless all are in the data set."""
        numbers = np.fromiter(records, np.int64, len(records))
        ranks = np.searchsorted(self.numbers, numbers, sorter=self.by_number)
        positions = self.by_number.take(ranks, mode="clip")
        if not np.array_equal(self.numbers[positions], numbers):
            raise ValueError("a record to be proved forgotten is not in the data set")
        return sorted(positions.tolist())

    def prove_present(self, records: Collection[int]) -> tuple[list[bytes], PresenceProof]:
        """Return the commitments of records, ascending, and the proof that they are in the data set.

        Raises ValueError unless all are.
        """
        positions = self.positions_of(records)
        proof = PresenceProof(places=positions, proof=self.prove(positions))
        return [self.commitment(position) for position in positions], proof

    def prove(self, positions: Iterable[int]) -> list[str]:
        """Return the hashes that lead from the commitments at these positions to the root.

        They are the roots of the largest subtrees without any of the positions, from left to right.
        """
        nodes, proof = set(positions), []
        for level, hashes in enumerate(self.levels[:-1]):
            for node in nodes:
                sibling = node ^ 1
                if sibling not in nodes and HASH * sibling < len(hashes):
                    proof.append((sibling << level, hashes[HASH * sibling : HASH * (sibling + 1)].hex()))
            nodes = {node >> 1 for node in nodes}
        return [root for _, root in sorted(proof)]


def prove_forgotten(before: DatasetTree, after: DatasetTree, records: Collection[int]) -> ForgottenProof:
    """Prove that records were in one data set and are not in the other. Raises ValueError if that is false."""
    forgotten, present = before.prove_present(records)
    neighbours = sorted({position for commitment in forgotten for position in _neighbours(after, commitment)})
    around = [Neighbour(position=position, commitment=after.commitment(position).hex()) for position in neighbours]
    return ForgottenProof(
        commitments=[commitment.hex() for commitment in forgotten],
        before=present,
        after=AbsenceProof(neighbours=around, proof=after.prove(neighbours)),
    )


def _neighbours(tree: DatasetTree, absent: bytes) -> list[int]:
    """Return the positions beside an absent commitment: two, or one at either end."""
    position = tree.position(absent)
    if position < tree.records and tree.commitment(position) == absent:
        raise ValueError("a record to be proved forgotten is still in the data set")
    return [neighbour for neighbour in (position - 1, position) if 0 <= neighbour < tree.records]


def _fields(dataset: Dataset) -> list[NDArray[np.uint8]]:
    """Return the hashed fields of all records, each as columns of bytes."""
    fields = [dataset.salts, _bytes_of(dataset.records.astype(">u8"))]
    for name in sorted(dataset.arrays):
        label = np.frombuffer(name.encode() + b"\0", np.uint8)
        fields += [np.broadcast_to(label, (len(dataset.records), len(label))), _bytes_of(dataset.arrays[name])]
    return fields


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes as in the data set's file, little-endian: float32 is hashed as float32."""
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)


def _hashes(prefix: bytes, content: bytes, width: int) -> list[bytes]:
    """Return the SHA-256 of each `width` bytes. Nearly all the time is spent in this loop."""
    return [sha256(prefix + content[at : at + width]).digest() for at in range(0, len(content), width)]


def _levels(ascending: bytes) -> list[bytes]:
    levels = [b"".join(_hashes(LEAF_PREFIX, ascending, HASH))]
    while len(levels[-1]) > HASH:
        below = levels[-1]
        paired = len(below) // (2 * HASH) * (2 * HASH)
        # An unpaired last node moves up as it is, which splits every size as RFC 6962 does.
        levels.append(b"".join(_hashes(NODE_PREFIX, below[:paired], 2 * HASH)) + below[paired:])
    return levels
