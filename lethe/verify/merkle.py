"""RFC 6962 trees: the hashes, and the two proofs as RFC 9162 checks them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from .reading import Rejected


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def included(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """The root to which a proof of inclusion leads (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        raise Rejected("the entry stands behind the end of the log")
    place, last, result = index, size - 1, leaf
    for other in proof:
        if last == 0:
            raise Rejected("the proof of the entry is too long")
        if place % 2 or place == last:
            result = node_hash(other, result)
            while not place % 2 and place:
                place, last = place >> 1, last >> 1
        else:
            result = node_hash(result, other)
        place, last = place >> 1, last >> 1
    if last != 0:
        raise Rejected("the proof of the entry is too short")
    return result


def consistent(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether a proof of consistency leads to both roots (RFC 9162, 2.1.4.2)."""
    if old == new or old == 0:
        return not proof and (old == 0 or old_root == new_root)
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    place, last = old - 1, new - 1
    while place % 2:
        place, last = place >> 1, last >> 1
    if not path:
        return False
    first = second = path[0]
    for other in path[1:]:
        if last == 0:
            return False
        if place % 2 or place == last:
            first, second = node_hash(other, first), node_hash(other, second)
            while not place % 2 and place:
                place, last = place >> 1, last >> 1
        else:
            second = node_hash(second, other)
        place, last = place >> 1, last >> 1
    return last == 0 and (first, second) == (old_root, new_root)
