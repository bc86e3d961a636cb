"""Forgotten records were in the data set before and are not in the one after, or the certificate is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lethe.verify import Rejected, verify
from service.store.log.merkle import leaf_hash, root_of
from tests.bundles import RECORDS, SIGNER, certificate, multiproof

KEY = SIGNER.public_pem.encode()


def keep_one(told: dict[str, Any]) -> None:
    """Record 7 is said to be forgotten, but is still there: the honest tree after has it."""
    kept = [record for place, record in enumerate(RECORDS) if place not in (0, 8, 39)]
    told["records"].update(after=37, forgotten_in_batch=3)
    told["dataset"]["after"].update(records=37)
    places = [0, 6, 7, 36]
    neighbours = [{"place": place, "commitment": kept[place].hex()} for place in places]
    told["dataset"]["after"]["root"] = root_of([leaf_hash(one) for one in kept]).hex()
    told["forgotten"]["after"] = {"neighbours": neighbours, "proof": multiproof(kept, places)}


def after(told: dict[str, Any]) -> Any:
    return told["forgotten"]["after"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (keep_one, "still in the data set after"),
        (lambda p: p["forgotten"]["commitments"].reverse(), "once each and in order"),
        (lambda p: p["forgotten"].update(commitments=[]), "once each and in order"),
        (lambda p: p["forgotten"]["commitments"].pop(), "has its place"),
        (lambda p: p["forgotten"]["before"]["places"].reverse(), "root of the data set before"),
        (lambda p: p["forgotten"]["before"]["places"].__setitem__(3, 40), "no place of the data set before"),
        (lambda p: p["forgotten"]["before"]["proof"].pop(), "too short"),
        (lambda p: p["forgotten"]["before"]["proof"].append("0" * 64), "root of the data set before"),
        (lambda p: after(p)["neighbours"].pop(), "data set after"),
        (lambda p: after(p)["neighbours"][1].update(place=4), "data set after"),
        (lambda p: after(p)["neighbours"][0].update(commitment="0" * 64), "root of the data set after"),
        (lambda p: after(p).update(proof=["x"]), "not a SHA-256"),
        (lambda p: p["dataset"]["after"].update(records=35), "size that the certificate states"),
        (lambda p: p["dataset"]["before"].update(root="0" * 64), "root of the data set before"),
        (lambda p: p.pop("forgotten"), "forgotten is missing"),
        (lambda p: p.update(dataset={"before": "0" * 64, "after": "0" * 64}), "before is missing"),
    ],
)
def test_a_proof_that_does_not_hold_is_rejected(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(certificate(change), KEY)


@pytest.mark.parametrize("left_out", [0, 1, 2, 3])
def test_a_gap_without_its_neighbours_is_rejected(left_out: int) -> None:
    """The proof itself is honest; it only does not speak of the place where the record would be."""

    def change(told: dict[str, Any]) -> None:
        kept = [record for place, record in enumerate(RECORDS) if place not in (0, 7, 8, 39)]
        places = [place for number, place in enumerate([0, 5, 6, 35]) if number != left_out]
        neighbours = [{"place": place, "commitment": kept[place].hex()} for place in places]
        told["forgotten"]["after"] = {"neighbours": neighbours, "proof": multiproof(kept, places)}

    with pytest.raises(Rejected, match="not shown that a forgotten record is missing"):
        verify(certificate(change), KEY)
