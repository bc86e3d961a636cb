"""Merkle tree of RFC 6962, stored as tiles of 256 hashes (C2SP tlog-tiles). Any proof needs only a few tiles.

    leaf      SHA-256(0x00 || leaf)
    node      SHA-256(0x01 || left || right); of n leaves, the largest power of two below n are on the left

Tile (0, number) holds the hashes of the leaves from 256 * number on. The root of a full tile is one hash of the tile
above it. Hashes in a tile never change, tiles only grow: the tiles of a tree contain every earlier tree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence

WIDTH_BITS = 8
WIDTH = 1 << WIDTH_BITS
HASH_BYTES = 32
TILE_BYTES = WIDTH * HASH_BYTES

ReadTile = Callable[[int, int], bytes]
"""Maps level and number to the concatenated hashes of a tile."""


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes. An unpaired last hash moves up as it is, which matches RFC 6962's split."""
    row = list(hashes)
    if not row:
        return hashlib.sha256().digest()
    while len(row) > 1:
        unpaired = row[-1:] if len(row) % 2 else []
        row = [node_hash(left, right) for left, right in zip(row[::2], row[1::2], strict=False)] + unpaired
    return row[0]


class Tree:
    """Roots and proofs computed from tiles. Each tile is read once, and each complete subtree hashed once."""

    def __init__(self, read: ReadTile) -> None:
        self._read = functools.cache(read)
        self._subtree_root = functools.cache(self._compute_subtree_root)

    def append(self, size: int, hashes: Sequence[bytes]) -> Mapping[tuple[int, int], bytes]:
        """Return the tiles, by level and number, that change when `hashes` are appended to a tree of `size` leaves."""
        changed: dict[tuple[int, int], bytes] = {}
        level, index, new = 0, size, hashes
        while new:
            first, offset = divmod(index, WIDTH)
            existing = self._read(level, first)[: offset * HASH_BYTES] if offset else b""
            row = existing + b"".join(new)
            tiles = [row[start : start + TILE_BYTES] for start in range(0, len(row), TILE_BYTES)]
            changed.update({(level, number): tile for number, tile in enumerate(tiles, start=first)})
            new = [root_of(_split_hashes(tile)) for tile in tiles if len(tile) == TILE_BYTES]
            level, index = level + 1, first
        return changed

    def leaf(self, index: int) -> bytes:
        return self._range_root(index, index + 1)

    def root(self, size: int) -> bytes:
        return self._range_root(0, size) if size else root_of([])

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Prove that leaf `index` is in the tree of `size` leaves (RFC 6962, 2.1.1); hashes from the leaf upwards."""
        proof: list[bytes] = []
        start, end = 0, size
        while end - start > 1:
            middle = start + _split_point(end - start)
            if index < middle:
                proof.append(self._range_root(middle, end))
                end = middle
            else:
                proof.append(self._range_root(start, middle))
                start = middle
        return proof[::-1]

    def consistency(self, old: int, new: int) -> list[bytes]:
        """Prove that the tree of `new` leaves begins with the tree of `old` leaves (RFC 6962, 2.1.2)."""
        if old in (0, new):
            return []
        proof: list[bytes] = []
        start, end = 0, new
        while end != old:
            middle = start + _split_point(end - start)
            if old <= middle:
                proof.append(self._range_root(middle, end))
                end = middle
            else:
                proof.append(self._range_root(start, middle))
                start = middle
        seed = [self._range_root(start, end)] if start else []  # from 0 on it is the old root, which the reader has
        return seed + proof[::-1]

    def _range_root(self, start: int, end: int) -> bytes:
        """Return the root over the leaves from `start` to `end`; `start` must be the start of a subtree."""
        size = end - start
        if size & (size - 1) == 0:
            return self._subtree_root(start, size.bit_length() - 1)
        middle = start + _split_point(size)
        return node_hash(self._range_root(start, middle), self._range_root(middle, end))

    def _compute_subtree_root(self, start: int, height: int) -> bytes:
        """Return the root of the complete subtree of this height, which is a part of one tile."""
        level, height_in_tile = divmod(height, WIDTH_BITS)
        number, offset = divmod(start >> (level * WIDTH_BITS), WIDTH)
        hashes = self._read(level, number)[offset * HASH_BYTES :]
        return root_of(_split_hashes(hashes[: HASH_BYTES << height_in_tile]))


def _split_point(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _split_hashes(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]
