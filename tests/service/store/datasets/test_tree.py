"""Proofs are checked by a verifier in this file that follows the definition, independently of the implementation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.store.datasets.dataset import Dataset
from service.store.datasets.tree import DatasetTree, commit_records, prove_forgotten

Claims = dict[str, Any]


def some_dataset(rows: int, seed: int = 3) -> Dataset:
    random = np.random.default_rng(seed)
    salts = random.integers(0, 256, (rows, 16), dtype=np.uint8)
    return Dataset({"x": random.normal(size=(rows, 2))}, np.arange(rows) * 3, salts)


def test_a_commitment_is_over_salt_number_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    arrays = {"y": np.array([True, False, True]), "x": random.normal(size=(3, 2, 2)), "a": np.zeros((3, 0))}
    dataset = Dataset(arrays, np.array([2, 300, 70_000]), random.integers(0, 256, (3, 16), dtype=np.uint8))
    expected = [
        sha256(
            b"lethe-record-v1\0"
            + dataset.salts[row].tobytes()
            + int(dataset.records[row]).to_bytes(8, "big")
            + b"a\0"
            + (b"x\0" + arrays["x"][row].tobytes())
            + (b"y\0" + arrays["y"][row].tobytes())
        ).digest()
        for row in range(3)
    ]
    assert commit_records(dataset) == expected
    monkeypatch.setattr("service.store.datasets.tree.AT_ONCE", 1)  # one row at a time
    assert commit_records(dataset) == expected


def test_the_root_is_that_of_rfc_6962() -> None:
    for rows in range(1, 35):
        dataset = some_dataset(rows)
        tree = DatasetTree.from_dataset(dataset)
        assert (tree.root, tree.records) == (root_over(sorted(commit_records(dataset))).hex(), rows)


def test_positions_are_in_order_also_for_commitments_that_end_in_zero() -> None:
    dataset = some_dataset(2000)
    tree, ascending = DatasetTree.from_dataset(dataset), sorted(commit_records(dataset))
    assert any(commitment.endswith(b"\0") for commitment in ascending)
    assert [tree.commitment(position) for position in range(2000)] == ascending
    assert [tree.position(commitment) for commitment in ascending] == list(range(2000))


@st.composite
def forgettings(draw: st.DrawFn) -> tuple[Dataset, set[int]]:
    """Draw a small data set and some of its records, never all: a model without data is deleted, not certified."""
    dataset = some_dataset(draw(st.integers(2, 40)), draw(st.integers(0, 1000)))
    numbers = st.sampled_from(dataset.records.tolist())
    return dataset, draw(st.sets(numbers, min_size=1, max_size=len(dataset.records) - 1))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(forgettings(), st.data())
def test_every_forgetting_can_be_proved(forgetting: tuple[Dataset, set[int]], data: st.DataObject) -> None:
    dataset, batch = forgetting
    records = data.draw(st.sets(st.sampled_from(sorted(batch)), min_size=1))  # of one deletion in the batch
    claims = make_claims(dataset, batch, records)
    commitments = dict(zip(dataset.records.tolist(), commit_records(dataset), strict=True))
    assert claims["forgotten"]["commitments"] == sorted(commitments[record].hex() for record in records)
    assert verify(claims)


def test_a_retained_or_unknown_record_cannot_be_proved_forgotten() -> None:
    dataset = some_dataset(20)
    before, after = DatasetTree.from_dataset(dataset), DatasetTree.from_dataset(dataset.without([6, 9]))
    with pytest.raises(ValueError, match="still in the data set"):
        prove_forgotten(before, after, [6, 12])
    for unknown in (-1, 7, 60):
        with pytest.raises(ValueError, match="not in the data set"):
            prove_forgotten(before, after, [6, unknown])


def drop_neighbour(claims: Claims) -> None:
    claims["forgotten"]["after"]["neighbours"].pop()


def drop_neighbour_and_open_its_hash(claims: Claims) -> None:
    """The proof is consistent without the neighbour, but it does not show what is beside the gap."""
    dataset, batch = some_dataset(25), {0, 30}
    after = DatasetTree.from_dataset(dataset.without(batch))
    neighbours = claims["forgotten"]["after"]["neighbours"]
    del neighbours[0]
    claims["forgotten"]["after"]["proof"] = after.prove(neighbour["place"] for neighbour in neighbours)


def move_a_place(claims: Claims) -> None:
    claims["forgotten"]["before"]["places"][0] += 1


def move_a_neighbour(claims: Claims) -> None:
    claims["forgotten"]["after"]["neighbours"][0]["place"] -= 1


def name_a_retained_record(claims: Claims) -> None:
    claims["forgotten"]["commitments"][0] = claims["forgotten"]["after"]["neighbours"][0]["commitment"]


def prove_a_retained_record(claims: Claims) -> None:
    """Correct for the data set before; in the one after, the record stands between its claimed neighbours."""
    dataset = some_dataset(25)
    before, after = DatasetTree.from_dataset(dataset), DatasetTree.from_dataset(dataset.without([0, 30]))
    (position,) = before.positions_of([12])
    commitment = before.commitment(position)
    around = [after.position(commitment) - 1, after.position(commitment) + 1]
    neighbours = [{"place": index, "commitment": after.commitment(index).hex()} for index in around]
    claims["forgotten"] = {
        "commitments": [commitment.hex()],
        "before": {"places": [position], "proof": before.prove([position])},
        "after": {"neighbours": neighbours, "proof": after.prove(around)},
    }


def double_the_size_before(claims: Claims) -> None:
    claims["dataset"]["before"]["records"] *= 2


def double_the_size_after(claims: Claims) -> None:
    claims["dataset"]["after"]["records"] *= 2


def halve_the_size_after(claims: Claims) -> None:
    claims["dataset"]["after"]["records"] //= 2


def swap_the_roots(claims: Claims) -> None:
    before, after = claims["dataset"]["before"], claims["dataset"]["after"]
    before["root"], after["root"] = after["root"], before["root"]


def flip_a_bit_of_the_proof(claims: Claims) -> None:
    proof = claims["forgotten"]["after"]["proof"]
    proof[-1] = f"{int(proof[-1], 16) ^ 1:064x}"


def shorten_the_proof(claims: Claims) -> None:
    claims["forgotten"]["before"]["proof"].pop()


def lengthen_the_proof(claims: Claims) -> None:
    claims["forgotten"]["before"]["proof"].append("00" * 32)


TAMPERINGS = [
    drop_neighbour,
    drop_neighbour_and_open_its_hash,
    move_a_place,
    move_a_neighbour,
    name_a_retained_record,
    prove_a_retained_record,
    double_the_size_before,
    double_the_size_after,
    halve_the_size_after,
    swap_the_roots,
    flip_a_bit_of_the_proof,
    shorten_the_proof,
    lengthen_the_proof,
]


@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_a_tampered_proof_is_rejected(tamper: Callable[[Claims], None]) -> None:
    honest = make_claims(some_dataset(25), {0, 30}, {0, 30})
    tampered = copy.deepcopy(honest)
    tamper(tampered)
    assert tampered != honest
    assert verify(honest)
    assert not verify(tampered)


def make_claims(dataset: Dataset, batch: Collection[int], records: Collection[int]) -> Claims:
    """Return a certificate's claims about these trees."""
    before, after = DatasetTree.from_dataset(dataset), DatasetTree.from_dataset(dataset.without(batch))
    sides = {"before": before, "after": after}
    return {
        "dataset": {side: {"root": tree.root, "records": tree.records} for side, tree in sides.items()},
        "forgotten": prove_forgotten(before, after, records).to_dict(),
    }


def verify(claims: Claims) -> bool:
    forgotten, dataset = claims["forgotten"], claims["dataset"]
    commitments, before, after = forgotten["commitments"], forgotten["before"], forgotten["after"]
    neighbours = {neighbour["place"]: neighbour["commitment"] for neighbour in after["neighbours"]}
    return (
        leads_to(dataset["before"], dict(zip(before["places"], commitments, strict=True)), before["proof"])
        and leads_to(dataset["after"], neighbours, after["proof"])
        and all(is_in_gap(commitment, neighbours, dataset["after"]["records"]) for commitment in commitments)
    )


def is_in_gap(commitment: str, neighbours: Mapping[int, str], size: int) -> bool:
    ends = {-1: "", size: "g"}  # smaller and larger than any hexadecimal
    leaves = {**ends, **neighbours}
    return any(leaves[index] < commitment < leaves[index + 1] for index in leaves if index + 1 in leaves)


def leads_to(side: Mapping[str, Any], leaves: Mapping[int, str], proof: list[str]) -> bool:
    remaining = iter(proof)
    try:
        root = rebuild_root(range(side["records"]), leaves, remaining)
    except StopIteration:
        return False
    return root.hex() == side["root"] and not list(remaining) and all(index < side["records"] for index in leaves)


def rebuild_root(indices: range, leaves: Mapping[int, str], proof: Iterator[str]) -> bytes:
    if not any(index in leaves for index in indices):
        return bytes.fromhex(next(proof))
    if len(indices) == 1:
        return sha256(b"\0" + bytes.fromhex(leaves[indices[0]])).digest()
    split = split_point(len(indices))
    left = rebuild_root(indices[:split], leaves, proof)
    return sha256(b"\1" + left + rebuild_root(indices[split:], leaves, proof)).digest()


def root_over(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    split = split_point(len(leaves))
    return sha256(b"\1" + root_over(leaves[:split]) + root_over(leaves[split:])).digest()


def split_point(size: int) -> int:
    """Return the largest power of two below `size`."""
    split = 1
    while 2 * split < size:
        split *= 2
    return split


def test_the_presence_of_records_is_proved_alone() -> None:
    dataset = some_dataset(9)
    tree = DatasetTree.from_dataset(dataset)
    commitments, present = tree.prove_present([3, 24])
    assert commitments == sorted(commit_records(dataset)[row] for row in (1, 8))
    assert present == prove_forgotten(tree, DatasetTree.from_dataset(dataset.without([3, 24])), [3, 24]).before
    with pytest.raises(ValueError, match="not in the data set"):
        tree.prove_present([1])
