from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from lethe.verify import Rejected, verify
from tests.bundles import POSTERIOR, SIGNER, certificate

KEY = SIGNER.public_pem.encode()
OTHER = {"digest": "f" * 64, "kind": "dataset"}
AFTER = {"digest": hashlib.sha256(POSTERIOR).hexdigest(), "kind": "posterior"}


def test_other_files_of_the_model_are_counted() -> None:
    checks = verify(certificate(), KEY).checks
    line = "other files of the model: 1 were destroyed before, 1 due by 2026-11-16T09:00:00+00:00"
    assert line in checks


def test_a_certificate_that_lists_no_files_is_an_earlier_one() -> None:
    checks = verify(certificate(lambda content: content.pop("erasure")), KEY).checks
    assert not any("other files" in check for check in checks)


def change(member: str, files: list[dict[str, Any]]) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["erasure"].update({member: files})


CHANGES = {
    "the data set before is left out": (change("destroyed", []), "a file of the version before"),
    "the posterior before is left out": (change("scheduled", []), "a file of the version before"),
    "the posterior after is listed": (
        lambda content: content["erasure"]["destroyed"].append(AFTER),
        "a file of the version after",
    ),
    "a file is listed twice": (
        lambda content: content["erasure"]["destroyed"].append(content["erasure"]["scheduled"][0]),
        "as destroyed and as scheduled",
    ),
    "the digests do not ascend": (
        lambda content: content["erasure"]["destroyed"].insert(0, OTHER),
        "do not ascend",
    ),
    "a digest is no digest": (change("destroyed", [{**OTHER, "digest": "f"}]), "not a SHA-256"),
    "a kind is missing": (change("destroyed", [{"digest": "0" * 64}]), "kind is missing"),
    "a time is missing": (lambda content: content["erasure"]["scheduled"][0].pop("at"), "at is missing"),
    "the list is missing": (lambda content: content["erasure"].pop("scheduled"), "scheduled is missing"),
    "it is no object": (lambda content: content.update(erasure=[]), "erasure is missing"),
}


@pytest.mark.parametrize(("alter", "reason"), CHANGES.values(), ids=CHANGES.keys())
def test_contradictions_are_rejected(alter: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(certificate(alter), KEY)
