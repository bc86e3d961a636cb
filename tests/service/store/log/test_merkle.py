from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import pytest

from service.store.log.merkle import TILE_BYTES, WIDTH, Tree, leaf_hash, node_hash, root_of

# Test vectors of the certificate-transparency reference implementation.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243"),
        *("5051525354555657", "606162636465666768696a6b6c6d6e6f"),
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION: dict[tuple[int, int], list[str]] = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
CONSISTENCY: dict[tuple[int, int], list[str]] = {
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
SMALL = 300
BORDERS = [255, 256, 257, 511, 512, 513]
LARGE = [65_535, 65_536, 65_537]


class Tiles:
    """Tiles in memory, grown only by `append`. Counts reads."""

    def __init__(self) -> None:
        self.tiles: dict[tuple[int, int], bytes] = {}
        self.size = 0
        self.reads = 0

    @property
    def tree(self) -> Tree:
        return Tree(self._read)

    def grow(self, hashes: Sequence[bytes]) -> Mapping[tuple[int, int], bytes]:
        changed = self.tree.append(self.size, hashes)
        self.tiles.update(changed)
        self.size += len(hashes)
        return changed

    def _read(self, level: int, number: int) -> bytes:
        self.reads += 1
        return self.tiles[level, number]


class Plain:
    """RFC 6962, 2.1, implemented literally on a list in memory."""

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self.hashes = hashes
        self._known: dict[tuple[int, int], bytes] = {}

    def root(self, start: int, end: int) -> bytes:
        if (start, end) not in self._known:
            self._known[start, end] = self._root(start, end)
        return self._known[start, end]

    def _root(self, start: int, end: int) -> bytes:
        if end - start == 1:
            return self.hashes[start]
        k = self.split(end - start)
        return hashlib.sha256(b"\x01" + self.root(start, start + k) + self.root(start + k, end)).digest()

    @staticmethod
    def split(n: int) -> int:
        k = 1
        while 2 * k < n:
            k *= 2
        return k

    def path(self, m: int, start: int, end: int) -> list[bytes]:
        n = end - start
        if n == 1:
            return []
        k = self.split(n)
        if m < k:
            return [*self.path(m, start, start + k), self.root(start + k, end)]
        return [*self.path(m - k, start + k, end), self.root(start, start + k)]

    def proof(self, m: int, start: int, end: int, whole: bool = True) -> list[bytes]:
        n = end - start
        if m == n:
            return [] if whole else [self.root(start, end)]
        k = self.split(n)
        if m <= k:
            return [*self.proof(m, start, start + k, whole), self.root(start + k, end)]
        return [*self.proof(m - k, start + k, end, False), self.root(start, start + k)]


def hexes(hashes: Sequence[bytes]) -> list[str]:
    return [value.hex() for value in hashes]


def leaves(count: int) -> list[bytes]:
    return [leaf_hash(b"%d" % number) for number in range(count)]


def test_the_published_tree() -> None:
    tiles = Tiles()
    for number, entry in enumerate(INPUTS):
        tiles.grow([leaf_hash(entry)])
        assert tiles.tree.root(number + 1).hex() == ROOTS[number]
    assert {key: hexes(tiles.tree.inclusion(*key)) for key in INCLUSION} == INCLUSION
    assert {key: hexes(tiles.tree.consistency(*key)) for key in CONSISTENCY} == CONSISTENCY
    assert [root_of([leaf_hash(entry) for entry in INPUTS[:n]]).hex() for n in range(1, 9)] == ROOTS


def test_the_empty_tree() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert Tiles().tree.root(0).hex() == root_of([]).hex() == empty
    assert Tiles().tree.append(0, []) == {}


def test_leaf_and_node_hashes_differ() -> None:
    left, right = leaves(2)
    assert leaf_hash(left + right) != node_hash(left, right)


def test_every_small_tree_matches_the_rfc() -> None:
    hashes, tiles = leaves(SMALL), Tiles()
    plain = Plain(hashes)
    for size in range(1, SMALL + 1):
        tiles.grow(hashes[size - 1 : size])
        assert tiles.tree.root(size) == plain.root(0, size) == root_of(hashes[:size])
    tree = tiles.tree
    for size in range(1, SMALL + 1):  # older trees from the tiles of the newest
        assert tree.root(size) == plain.root(0, size)
        for index in {0, 1, size // 3, size // 2, size - 2, size - 1} & set(range(size)):
            assert tree.inclusion(index, size) == plain.path(index, 0, size)
            assert tree.consistency(index + 1, size) == plain.proof(index + 1, 0, size)
    assert [tree.leaf(index) for index in range(SMALL)] == hashes


@pytest.mark.parametrize("size", [100, 257])
def test_every_proof_of_one_tree(size: int) -> None:
    hashes, tiles = leaves(size), Tiles()
    tiles.grow(hashes)
    plain, tree = Plain(hashes), tiles.tree
    for index in range(size):
        assert tree.inclusion(index, size) == plain.path(index, 0, size)
        assert tree.consistency(index + 1, size) == plain.proof(index + 1, 0, size)
    assert tree.consistency(0, size) == []


def test_trees_around_the_borders_of_tiles() -> None:
    hashes, tiles = leaves(LARGE[-1]), Tiles()
    for stop in (1, *BORDERS, 10_000, *LARGE):
        tiles.grow(hashes[tiles.size : stop])
    plain, tree = Plain(hashes), tiles.tree
    for size in (*BORDERS, *LARGE):
        assert tree.root(size) == plain.root(0, size)
        for index in {0, 254, 255, 256, 257, 511, 512, 32_767, 32_768, 65_535, size - 1}:
            if index < size:
                assert tree.inclusion(index, size) == plain.path(index, 0, size)
                assert tree.consistency(index + 1, size) == plain.proof(index + 1, 0, size)


def test_tiles_do_not_depend_on_how_they_were_filled() -> None:
    hashes, once, often = leaves(70_000), Tiles(), Tiles()
    once.grow(hashes)
    for start in range(0, len(hashes), 777):
        often.grow(hashes[start : start + 777])
    assert once.tiles == often.tiles
    # The example of C2SP tlog-tiles: 273 full tiles and one of 112, one full tile and one of 17, one of 1.
    assert max(number for level, number in once.tiles if level == 0) == 273
    widths = [len(once.tiles[key]) // 32 for key in ((0, 272), (0, 273), (1, 0), (1, 1), (2, 0))]
    assert widths == [256, 112, 256, 17, 1]


def test_only_what_changed_is_written_and_full_tiles_never_again() -> None:
    tiles = Tiles()
    tiles.grow(leaves(WIDTH - 1))
    assert set(tiles.grow(leaves(1))) == {(0, 0), (1, 0)}
    assert set(tiles.grow(leaves(1))) == {(0, 1)}
    assert len(tiles.tiles[0, 0]) == TILE_BYTES


def test_a_proof_reads_a_few_tiles_only() -> None:
    tiles = Tiles()
    tiles.grow(leaves(LARGE[-1]))
    for ask in (lambda tree: tree.inclusion(40_000, 65_537), lambda tree: tree.consistency(40_000, 65_537)):
        tiles.reads = 0
        assert len(ask(tiles.tree)) <= 18
        assert tiles.reads <= 6
