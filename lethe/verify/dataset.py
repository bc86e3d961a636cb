"""The data set before and after: two Merkle trees over commitments to its records, which stand there in order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .merkle import leaf_hash, node_hash
from .reading import Rejected, hash_at, hashes_at, list_at, object_at, whole_at


def check_absent(predicate: Mapping[str, Any]) -> str:
    """The forgotten records were in the data set before, and are not in the one after."""
    forgotten, dataset, counts = (object_at(predicate, name) for name in ("forgotten", "dataset", "records"))
    gone = hashes_at(forgotten, "commitments")
    if not gone or any(one >= other for one, other in pairwise(gone)):
        raise Rejected("the forgotten records are not listed once each and in order")
    was, now = object_at(forgotten, "before"), object_at(forgotten, "after")
    sizes = {side: whole_at(object_at(dataset, side), "records") for side in ("before", "after")}
    if sizes != {side: counts[side] for side in sizes}:
        raise Rejected("the data sets are not of the size that the certificate states")
    stood = [whole_at({"place": place}, "place") for place in list_at(was, "places")]
    if len(stood) != len(gone):
        raise Rejected("not every forgotten record has its place in the data set before")
    _check_leaves(object_at(dataset, "before"), dict(zip(stood, gone, strict=True)), was, "before")
    neighbours = {whole_at(one, "place"): hash_at(one, "commitment") for one in list_at(now, "neighbours")}
    _check_leaves(object_at(dataset, "after"), neighbours, now, "after")
    places = sorted(neighbours)
    left = [neighbours[place] for place in places]
    if any(one >= other for one, other in pairwise(left)):
        raise Rejected("the records of the data set after do not stand in order")
    for commitment in gone:
        _check_gap(places, left, sizes["after"], commitment)
    return f"{len(gone)} records of this deletion were in the data set before, and none is in the one after"


def _check_leaves(side: Mapping[str, Any], leaves: Mapping[int, bytes], given: Mapping[str, Any], name: str) -> None:
    """The leaves stand at these places of the tree that the data set's root belongs to."""
    size, proof = whole_at(side, "records"), iter(hashes_at(given, "proof"))
    if not leaves or min(leaves) < 0 or max(leaves) >= size:
        raise Rejected(f"a record stands at no place of the data set {name}")
    root = _subtree(0, size, {place: leaf_hash(leaf) for place, leaf in leaves.items()}, sorted(leaves), proof)
    if root != hash_at(side, "root") or next(proof, None) is not None:
        raise Rejected(f"the proof does not lead to the root of the data set {name}")


def _subtree(
    start: int, size: int, leaves: Mapping[int, bytes], places: Sequence[int], proof: Iterator[bytes]
) -> bytes:
    """The hash of so many leaves: computed where one of ours is among them, else the next one given."""
    first = bisect_left(places, start)
    if first == len(places) or places[first] >= start + size:
        given = next(proof, None)
        if given is None:
            raise Rejected("a proof about the data set is too short")
        return given
    if size == 1:
        return leaves[start]
    left = 1 << (size - 1).bit_length() - 1
    return node_hash(
        _subtree(start, left, leaves, places, proof), _subtree(start + left, size - left, leaves, places, proof)
    )


def _check_gap(places: Sequence[int], left: Sequence[bytes], size: int, commitment: bytes) -> None:
    """Records stand in order, so one that is missing has two neighbours between which it would be."""
    next_one = bisect_left(left, commitment)
    if left[next_one : next_one + 1] == [commitment]:
        raise Rejected("a forgotten record is still in the data set after")
    below = places[next_one - 1] if next_one else -1
    above = places[next_one] if next_one < len(places) else size
    if above != below + 1:
        raise Rejected("it is not shown that a forgotten record is missing from the data set after")
