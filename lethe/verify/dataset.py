"""Merkle trees of the data set before and after. Their leaves are commitments to the records, in ascending order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from .merkle import leaf_hash, node_hash
from .reading import Rejected, hash_at, hashes_at, list_at, object_at, whole_at

Ordered = TypeVar("Ordered", bytes, int)
SIZES_DIFFER = "the sizes of the data sets differ from the record counts of the certificate"


def check_forgotten(predicate: Mapping[str, Any]) -> str:
    """Check that the forgotten records were in the data set before and are not in the one after."""
    commitments = check_present(predicate)
    after, counts = object_at(object_at(predicate, "forgotten"), "after"), object_at(predicate, "records")
    dataset = object_at(object_at(predicate, "dataset"), "after")
    size = whole_at(dataset, "records")
    if size != whole_at(counts, "after"):
        raise Rejected(SIZES_DIFFER)
    neighbours = list_at(after, "neighbours")
    positions = [whole_at(neighbour, "place") for neighbour in neighbours]
    neighbour_commitments = [hash_at(neighbour, "commitment") for neighbour in neighbours]
    if not _is_ascending(positions) or not _is_ascending(neighbour_commitments):
        raise Rejected("the records of the data set after are not in ascending order")
    _check_leaves(dataset, dict(zip(positions, neighbour_commitments, strict=True)), after, "after")
    for commitment in commitments:
        _check_gap(positions, neighbour_commitments, size, commitment)
    return f"{len(commitments)} records of this deletion were in the data set before and are not in the one after"


def check_present(predicate: Mapping[str, Any]) -> list[bytes]:
    """Check that the forgotten records were in the data set before. Return their commitments."""
    forgotten, counts = object_at(predicate, "forgotten"), object_at(predicate, "records")
    commitments, before = hashes_at(forgotten, "commitments"), object_at(forgotten, "before")
    if not commitments or not _is_ascending(commitments):
        raise Rejected("the forgotten records are not distinct and in ascending order")
    dataset = object_at(object_at(predicate, "dataset"), "before")
    if whole_at(dataset, "records") != whole_at(counts, "before"):
        raise Rejected(SIZES_DIFFER)
    positions = [whole_at({"place": position}, "place") for position in list_at(before, "places")]
    if len(positions) != len(commitments) or not _is_ascending(positions):
        raise Rejected("the places of the forgotten records are not as many, or not in ascending order")
    _check_leaves(dataset, dict(zip(positions, commitments, strict=True)), before, "before")
    return commitments


def _is_ascending(items: Sequence[Ordered]) -> bool:
    return all(first < second for first, second in pairwise(items))


def _check_leaves(side: Mapping[str, Any], leaves: Mapping[int, bytes], proven: Mapping[str, Any], name: str) -> None:
    """Check that the leaves are at these positions of the tree with the data set's root."""
    size, proof = whole_at(side, "records"), iter(hashes_at(proven, "proof"))
    if not leaves or max(leaves) >= size:
        raise Rejected(f"a record is outside the data set {name}")
    root = _subtree(0, size, {position: leaf_hash(leaf) for position, leaf in leaves.items()}, sorted(leaves), proof)
    if root != hash_at(side, "root") or next(proof, None) is not None:
        raise Rejected(f"the proof does not lead to the root of the data set {name}")


def _subtree(
    start: int, size: int, leaves: Mapping[int, bytes], positions: Sequence[int], proof: Iterator[bytes]
) -> bytes:
    """Return the hash of `size` leaves from `start` on: computed if one of ours is among them, else from the proof."""
    first = bisect_left(positions, start)
    if first == len(positions) or positions[first] >= start + size:
        node = next(proof, None)
        if node is None:
            raise Rejected("a proof about the data set is too short")
        return node
    if size == 1:
        return leaves[start]
    left = 1 << (size - 1).bit_length() - 1
    return node_hash(
        _subtree(start, left, leaves, positions, proof), _subtree(start + left, size - left, leaves, positions, proof)
    )


def _check_gap(positions: Sequence[int], commitments: Sequence[bytes], size: int, commitment: bytes) -> None:
    """Check that a record is absent: leaves are sorted, so it would be between two adjacent neighbours."""
    successor = bisect_left(commitments, commitment)
    if commitments[successor : successor + 1] == [commitment]:
        raise Rejected("a forgotten record is still in the data set after")
    below = positions[successor - 1] if successor else -1
    above = positions[successor] if successor < len(positions) else size
    if above != below + 1:
        raise Rejected("the absence of a forgotten record from the data set after is not shown")
