"""Forgotten records were in the data set before and are not in the one after, or the certificate is rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lethe.verify import Rejected, verify
from service.store.log.merkle import leaf_hash, root_of
from tests.bundles import RECORDS, SIGNER, certificate, multiproof

KEY = SIGNER.public_pem.encode()


def keep_one(predicate: dict[str, Any]) -> None:
    """List record 7 as forgotten although the honest tree after still has it."""
    retained = [record for position, record in enumerate(RECORDS) if position not in (0, 8, 39)]
    predicate["records"].update(after=37, forgotten_in_batch=3)
    predicate["dataset"]["after"].update(records=37)
    positions = [0, 6, 7, 36]
    neighbours = [{"place": position, "commitment": retained[position].hex()} for position in positions]
    predicate["dataset"]["after"]["root"] = root_of([leaf_hash(record) for record in retained]).hex()
    predicate["forgotten"]["after"] = {"neighbours": neighbours, "proof": multiproof(retained, positions)}


def after(predicate: dict[str, Any]) -> Any:
    return predicate["forgotten"]["after"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (keep_one, "still in the data set after"),
        (lambda p: p["forgotten"]["commitments"].reverse(), "distinct and in ascending order"),
        (lambda p: p["forgotten"].update(commitments=[]), "distinct and in ascending order"),
        (lambda p: p["forgotten"]["commitments"].pop(), "places of the forgotten records"),
        (lambda p: p["forgotten"]["before"]["places"].reverse(), "places of the forgotten records"),
        (lambda p: p["forgotten"]["before"].update(places=[0, 7, 7, 39]), "places of the forgotten records"),
        (lambda p: p["forgotten"]["before"].update(places=[0, 7, 8, True]), "place is not a whole number"),
        (lambda p: after(p)["neighbours"].reverse(), "not in ascending order"),
        (lambda p: after(p)["neighbours"].append(after(p)["neighbours"][-1]), "not in ascending order"),
        (lambda p: after(p).update(neighbours=[5]), "place is not a whole number"),
        (lambda p: p["records"].pop("before"), "before is not a whole number"),
        (lambda p: p["forgotten"]["before"]["places"].__setitem__(3, 40), "outside the data set before"),
        (lambda p: p["forgotten"]["before"]["proof"].pop(), "too short"),
        (lambda p: p["forgotten"]["before"]["proof"].append("0" * 64), "root of the data set before"),
        (lambda p: after(p)["neighbours"].pop(), "data set after"),
        (lambda p: after(p)["neighbours"][1].update(place=4), "data set after"),
        (lambda p: after(p)["neighbours"][0].update(commitment="0" * 64), "root of the data set after"),
        (lambda p: after(p).update(proof=["x"]), "not a SHA-256"),
        (lambda p: p["dataset"]["after"].update(records=35), "differ from the record counts"),
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
    """The proof itself is honest but leaves out the position where the record would be."""

    def change(predicate: dict[str, Any]) -> None:
        retained = [record for position, record in enumerate(RECORDS) if position not in (0, 7, 8, 39)]
        positions = [position for number, position in enumerate([0, 5, 6, 35]) if number != left_out]
        neighbours = [{"place": position, "commitment": retained[position].hex()} for position in positions]
        predicate["forgotten"]["after"] = {"neighbours": neighbours, "proof": multiproof(retained, positions)}

    with pytest.raises(Rejected, match="absence of a forgotten record"):
        verify(certificate(change), KEY)
