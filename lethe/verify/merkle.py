"""Merkle trees of RFC 6962: hashes, and the proofs of RFC 9162."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from .reading import Rejected


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_from_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """Return the root to which an inclusion proof leads (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        raise Rejected("the index of the entry is beyond the end of the log")
    node, last, result = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise Rejected("the proof of the entry is too long")
        if node % 2 or node == last:
            result = node_hash(sibling, result)
            while not node % 2 and node:
                node, last = node >> 1, last >> 1
        else:
            result = node_hash(result, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise Rejected("the proof of the entry is too short")
    return result


def is_consistent(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Return whether a consistency proof leads to both roots (RFC 9162, 2.1.4.2)."""
    if old == new or old == 0:
        return not proof and (old == 0 or old_root == new_root)
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    node, last = old - 1, new - 1
    while node % 2:
        node, last = node >> 1, last >> 1
    if not path:
        return False
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if node % 2 or node == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not node % 2 and node:
                node, last = node >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and (first, second) == (old_root, new_root)
