"""The verifier's proofs against the prover's, which shares no code with it, and against the published tree."""

from __future__ import annotations

import pytest

from lethe.verify.merkle import is_consistent, leaf_hash, root_from_inclusion
from lethe.verify.reading import Rejected
from tests.bundles import LogInMemory

PUBLISHED = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOT = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


def test_the_published_tree() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in PUBLISHED]
    log = LogInMemory(leaves)
    for index, leaf in enumerate(leaves):
        assert root_from_inclusion(leaf_hash(leaf), index, 8, log.tree.inclusion(index, 8)).hex() == ROOT


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 20, 257])
def test_every_inclusion_is_accepted_and_no_other(size: int) -> None:
    leaves = [b"%d" % number for number in range(size)]
    log = LogInMemory(leaves)
    root = log.tree.root(size)
    for index, leaf in enumerate(leaves):
        proof = log.tree.inclusion(index, size)
        assert root_from_inclusion(leaf_hash(leaf), index, size, proof) == root
        assert root_from_inclusion(leaf_hash(b"another"), index, size, proof) != root
        if proof:
            assert root_from_inclusion(leaf_hash(leaf), index, size, [*proof[:-1], bytes(32)]) != root
        for wrong in (proof[:-1] if proof else [bytes(32)], [*proof, bytes(32)]):
            with pytest.raises(Rejected, match=r"too short|too long"):
                root_from_inclusion(leaf_hash(leaf), index, size, wrong)


def test_every_consistency_is_accepted_and_no_other() -> None:
    log = LogInMemory([b"%d" % number for number in range(40)])
    rewritten = LogInMemory([b"%d" % number if number != 3 else b"x" for number in range(40)])
    for new in range(1, 40):
        for old in range(new + 1):
            proof, roots = log.tree.consistency(old, new), (log.tree.root(old), log.tree.root(new))
            assert is_consistent(old, roots[0], new, roots[1], proof)
            assert not is_consistent(old, roots[0], new, roots[1], [*proof, bytes(32)])
            if 0 < old < new:
                assert not is_consistent(old, roots[0], new, roots[1], proof[:-1])
                assert not is_consistent(old, roots[0], new, bytes(32), proof)
            if old > 3:
                assert not is_consistent(old, rewritten.tree.root(old), new, roots[1], proof)
