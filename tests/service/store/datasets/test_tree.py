"""Proofs are judged by a checker of this file, which follows the definition and knows nothing of how they were made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.store.datasets import tree as dataset_tree
from service.store.datasets.dataset import Dataset
from service.store.datasets.tree import DatasetTree, commitments, forgotten_proof

Says = dict[str, Any]


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
    assert commitments(dataset) == expected
    monkeypatch.setattr(dataset_tree, "AT_ONCE", 1)  # a row at a time
    assert commitments(dataset) == expected


def test_the_root_is_that_of_rfc_6962() -> None:
    for rows in range(1, 35):
        dataset = some_dataset(rows)
        tree = DatasetTree.of(dataset)
        assert (tree.root, tree.records) == (root_over(sorted(commitments(dataset))).hex(), rows)


def test_places_are_in_order_also_of_commitments_that_end_in_zero() -> None:
    dataset = some_dataset(2000)
    tree, ascending = DatasetTree.of(dataset), sorted(commitments(dataset))
    assert any(commitment.endswith(b"\0") for commitment in ascending)
    assert [tree.commitment(place) for place in range(2000)] == ascending
    assert [tree.place(commitment) for commitment in ascending] == list(range(2000))


@st.composite
def forgettings(draw: st.DrawFn) -> tuple[Dataset, set[int]]:
    """A small data set and some of its records, never all: a model without data is deleted, not certified."""
    dataset = some_dataset(draw(st.integers(2, 40)), draw(st.integers(0, 1000)))
    numbers = st.sampled_from(dataset.records.tolist())
    return dataset, draw(st.sets(numbers, min_size=1, max_size=len(dataset.records) - 1))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(forgettings(), st.data())
def test_whatever_was_forgotten_is_proved_so(forgetting: tuple[Dataset, set[int]], data: st.DataObject) -> None:
    dataset, batch = forgetting
    asked = data.draw(st.sets(st.sampled_from(sorted(batch)), min_size=1))  # one deletion of the batch
    says = said(dataset, batch, asked)
    own = dict(zip(dataset.records.tolist(), commitments(dataset), strict=True))
    assert says["forgotten"]["commitments"] == sorted(own[record].hex() for record in asked)
    assert holds(says)


def test_a_record_that_is_still_there_or_never_was_is_not_proved_gone() -> None:
    dataset = some_dataset(20)
    before, after = DatasetTree.of(dataset), DatasetTree.of(dataset.without([6, 9]))
    with pytest.raises(ValueError, match="still in the data set"):
        forgotten_proof(before, after, [6, 12])
    for unknown in (-1, 7, 60):
        with pytest.raises(ValueError, match="not in the data set"):
            forgotten_proof(before, after, [6, unknown])


def drop_neighbour(says: Says) -> None:
    says["forgotten"]["after"]["neighbours"].pop()


def drop_neighbour_and_open_its_hash(says: Says) -> None:
    """As if it had not been wanted: the proof fits, but nobody knows what is beside the gap."""
    dataset, batch = some_dataset(25), {0, 30}
    after = DatasetTree.of(dataset.without(batch))
    neighbours = says["forgotten"]["after"]["neighbours"]
    del neighbours[0]
    says["forgotten"]["after"]["proof"] = after.prove(one["place"] for one in neighbours)


def move_a_place(says: Says) -> None:
    says["forgotten"]["before"]["places"][0] += 1


def move_a_neighbour(says: Says) -> None:
    says["forgotten"]["after"]["neighbours"][0]["place"] -= 1


def name_a_retained_record(says: Says) -> None:
    says["forgotten"]["commitments"][0] = says["forgotten"]["after"]["neighbours"][0]["commitment"]


def prove_a_retained_record(says: Says) -> None:
    """All is right about the data set before; in the one after it has neighbours too, but stands between them."""
    dataset = some_dataset(25)
    before, after = DatasetTree.of(dataset), DatasetTree.of(dataset.without([0, 30]))
    (place,) = before.places_of([12])
    commitment = before.commitment(place)
    around = [after.place(commitment) - 1, after.place(commitment) + 1]
    neighbours = [{"place": one, "commitment": after.commitment(one).hex()} for one in around]
    says["forgotten"] = {
        "commitments": [commitment.hex()],
        "before": {"places": [place], "proof": before.prove([place])},
        "after": {"neighbours": neighbours, "proof": after.prove(around)},
    }


def double_the_size_before(says: Says) -> None:
    says["dataset"]["before"]["records"] *= 2


def double_the_size_after(says: Says) -> None:
    says["dataset"]["after"]["records"] *= 2


def halve_the_size_after(says: Says) -> None:
    says["dataset"]["after"]["records"] //= 2


def swap_the_roots(says: Says) -> None:
    before, after = says["dataset"]["before"], says["dataset"]["after"]
    before["root"], after["root"] = after["root"], before["root"]


def flip_a_bit_of_the_proof(says: Says) -> None:
    proof = says["forgotten"]["after"]["proof"]
    proof[-1] = f"{int(proof[-1], 16) ^ 1:064x}"


def shorten_the_proof(says: Says) -> None:
    says["forgotten"]["before"]["proof"].pop()


def lengthen_the_proof(says: Says) -> None:
    says["forgotten"]["before"]["proof"].append("00" * 32)


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
def test_what_was_tampered_with_proves_nothing(tamper: Callable[[Says], None]) -> None:
    honest = said(some_dataset(25), {0, 30}, {0, 30})
    tampered = copy.deepcopy(honest)
    tamper(tampered)
    assert tampered != honest
    assert holds(honest)
    assert not holds(tampered)


def said(dataset: Dataset, batch: Collection[int], asked: Collection[int]) -> Says:
    """What a certificate says of these trees."""
    before, after = DatasetTree.of(dataset), DatasetTree.of(dataset.without(batch))
    sides = {"before": before, "after": after}
    return {
        "dataset": {side: {"root": tree.root, "records": tree.records} for side, tree in sides.items()},
        "forgotten": forgotten_proof(before, after, asked),
    }


def holds(says: Says) -> bool:
    forgotten, dataset = says["forgotten"], says["dataset"]
    gone, was, now = forgotten["commitments"], forgotten["before"], forgotten["after"]
    beside = {one["place"]: one["commitment"] for one in now["neighbours"]}
    return (
        leads_to(dataset["before"], dict(zip(was["places"], gone, strict=True)), was["proof"])
        and leads_to(dataset["after"], beside, now["proof"])
        and all(in_a_gap(commitment, beside, dataset["after"]["records"]) for commitment in gone)
    )


def in_a_gap(commitment: str, beside: Mapping[int, str], size: int) -> bool:
    ends = {-1: "", size: "g"}  # smaller and larger than any hexadecimal
    known = {**ends, **beside}
    return any(known[place] < commitment < known[place + 1] for place in known if place + 1 in known)


def leads_to(side: Mapping[str, Any], leaves: Mapping[int, str], proof: list[str]) -> bool:
    left = iter(proof)
    try:
        root = rebuilt(range(side["records"]), leaves, left)
    except StopIteration:
        return False
    return root.hex() == side["root"] and not list(left) and all(place < side["records"] for place in leaves)


def rebuilt(places: range, leaves: Mapping[int, str], proof: Iterator[str]) -> bytes:
    if not any(place in leaves for place in places):
        return bytes.fromhex(next(proof))
    if len(places) == 1:
        return sha256(b"\0" + bytes.fromhex(leaves[places[0]])).digest()
    split = split_of(len(places))
    left = rebuilt(places[:split], leaves, proof)
    return sha256(b"\1" + left + rebuilt(places[split:], leaves, proof)).digest()


def root_over(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    split = split_of(len(leaves))
    return sha256(b"\1" + root_over(leaves[:split]) + root_over(leaves[split:])).digest()


def split_of(size: int) -> int:
    """The largest power of two below it."""
    split = 1
    while 2 * split < size:
        split *= 2
    return split
