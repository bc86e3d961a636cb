"""The tree of RFC 6962, kept as tiles of 256 hashes (C2SP tlog-tiles): a few of them hold all that any proof needs.

    leaf      SHA-256(0x00 || leaf)
    node      SHA-256(0x01 || left || right); of n leaves, the largest power of two below n are on the left

Tile (0, number) holds the hashes of the leaves from 256 * number on. The root of a full tile is one hash of the tile
above it. Nothing in a tile ever changes, it only gets longer: every older tree is in the tiles of a younger one.
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
"""From level and number to the hashes of a tile, side by side."""


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """Of all leaves' hashes. One without a partner goes up as it is: that is where RFC 6962 splits."""
    row = list(hashes)
    if not row:
        return hashlib.sha256().digest()
    while len(row) > 1:
        single = row[-1:] if len(row) % 2 else []
        row = [node_hash(left, right) for left, right in zip(row[::2], row[1::2], strict=False)] + single
    return row[0]


class Tree:
    """Roots and proofs from tiles. Each tile is read once."""

    def __init__(self, read: ReadTile) -> None:
        self._read = functools.cache(read)

    def append(self, size: int, hashes: Sequence[bytes]) -> Mapping[tuple[int, int], bytes]:
        """The tiles, by level and number, that change when a tree of `size` leaves gets these besides."""
        changed: dict[tuple[int, int], bytes] = {}
        level, place, new = 0, size, hashes
        while new:
            first, there = divmod(place, WIDTH)
            kept = self._read(level, first)[: there * HASH_BYTES] if there else b""
            row = kept + b"".join(new)
            tiles = [row[start : start + TILE_BYTES] for start in range(0, len(row), TILE_BYTES)]
            changed.update({(level, number): tile for number, tile in enumerate(tiles, start=first)})
            level, place, new = level + 1, first, [root_of(_split(tile)) for tile in tiles if len(tile) == TILE_BYTES]
        return changed

    def leaf(self, index: int) -> bytes:
        return self._range(index, index + 1)

    def root(self, size: int) -> bytes:
        return self._range(0, size) if size else root_of([])

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The proof that leaf `index` is in the tree of `size` leaves (RFC 6962, 2.1.1), from the leaf upwards."""
        proof: list[bytes] = []
        start, end = 0, size
        while end - start > 1:
            middle = start + _split_point(end - start)
            if index < middle:
                proof.append(self._range(middle, end))
                end = middle
            else:
                proof.append(self._range(start, middle))
                start = middle
        return proof[::-1]

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the tree of `old` leaves is the beginning of that of `new` (RFC 6962, 2.1.2)."""
        if old in (0, new):
            return []
        proof: list[bytes] = []
        start, end = 0, new
        while end != old:
            middle = start + _split_point(end - start)
            if old <= middle:
                proof.append(self._range(middle, end))
                end = middle
            else:
                proof.append(self._range(start, middle))
                start = middle
        known = [self._range(start, end)] if start else []  # from 0 on it is the old root, which the reader has
        return known + proof[::-1]

    def _range(self, start: int, end: int) -> bytes:
        """The root over the leaves from `start` to `end`, which begin where a subtree of the whole begins."""
        size = end - start
        if size & (size - 1) == 0:
            return self._whole(start, size.bit_length() - 1)
        middle = start + _split_point(size)
        return node_hash(self._range(start, middle), self._range(middle, end))

    def _whole(self, start: int, height: int) -> bytes:
        """The root of the complete subtree of so many levels: a part of one tile."""
        level, inside = divmod(height, WIDTH_BITS)
        number, place = divmod(start >> (level * WIDTH_BITS), WIDTH)
        hashes = self._read(level, number)[place * HASH_BYTES :]
        return root_of(_split(hashes[: HASH_BYTES << inside]))


def _split_point(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]
