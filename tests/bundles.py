"""Signed certificates whose content a test chooses, with the log and the data set around them that they need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from service.store.log import checkpoints as notes
from service.store.log.leaves import leaf
from service.store.log.merkle import Tree, leaf_hash, root_of
from service.store.signing.statements import CERTIFICATE_TYPE, StatementSigner, bundle, statement_digest

SIGNER = StatementSigner(bytes(range(32)))
POSTERIOR = b"the posterior after forgetting"
RECORDS = sorted(hashlib.sha256(bytes([number])).digest() for number in range(40))
"""Commitments to the records of a small data set."""
GONE = (0, 7, 8, 39)
"""Which of them are forgotten: the first, the last, and two neighbours."""


class LogInMemory:
    """A log that has only what is put into it."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        hashes = [leaf_hash(one) for one in leaves]
        tiles = Tree(lambda level, number: b"").append(0, hashes)
        self.tree = Tree(lambda level, number: tiles[level, number])

    def note(self, size: int, signer: StatementSigner = SIGNER) -> str:
        return notes.write(signer, size, self.tree.root(size))


def entry_of(signed: str, action: str, concerns: str, **details: Any) -> bytes:
    at = datetime(2026, 11, 16, 8, 0, 5, tzinfo=UTC)
    return leaf(action, "lethe", at, concerns, {**details, "statement": statement_digest(signed)})


def logged(signed: str, entry: bytes, index: int = 5, size: int = 9, signer: StatementSigner = SIGNER) -> bytes:
    """The bundle of a statement whose entry stands at a place of a log."""
    leaves = [b"entry %d" % number for number in range(size)]
    leaves[index] = entry
    log = LogInMemory(leaves)
    proof = [one.hex() for one in log.tree.inclusion(index, size)]
    place = {"checkpoint": log.note(size, signer), "entry": entry.decode(), "index": index, "proof": proof}
    return bundle(json.loads(signed)["envelope"], place).encode()


def predicate() -> dict[str, Any]:
    return {
        "certificate": "c-1",
        "deletion": "d-1",
        "received_at": "2026-11-16T08:00:00.000Z",
        "issued_at": "2026-11-16T08:00:05.000Z",
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "policy": {"epsilon": 1e-6, "level": "proved"},
        "bound": {"epsilon": 1e-9, "level": "proved", "assumptions": [{"name": "curvature", "holds": True}]},
        **dataset_members(),
    }


def dataset_members() -> dict[str, Any]:
    kept = [record for place, record in enumerate(RECORDS) if place not in GONE]
    # Each gap is between two kept records, and at both ends beside one.
    neighbours = [0, 5, 6, 35]
    return {
        "dataset": {
            "before": {"digest": "0" * 64, "root": _root(RECORDS), "records": 40},
            "after": {"digest": "1" * 64, "root": _root(kept), "records": 36},
        },
        "forgotten": {
            "commitments": [RECORDS[place].hex() for place in GONE],
            "before": {"places": list(GONE), "proof": multiproof(RECORDS, GONE)},
            "after": {
                "neighbours": [{"place": place, "commitment": kept[place].hex()} for place in neighbours],
                "proof": multiproof(kept, neighbours),
            },
        },
    }


def multiproof(leaves: Sequence[bytes], places: Sequence[int]) -> list[str]:
    """The hashes that are missing to compute the root from the leaves at these places."""

    def walk(start: int, end: int) -> list[str]:
        if not any(start <= place < end for place in places):
            return [_root(leaves[start:end])]
        if end - start == 1:
            return []
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        return walk(start, middle) + walk(middle, end)

    return walk(0, len(leaves))


def certificate(
    change: Callable[[dict[str, Any]], object] = lambda _: None, signer: StatementSigner = SIGNER, **place: int
) -> bytes:
    """A signed and logged certificate whose content was changed before signing."""
    content = predicate()
    change(content)
    signed = signed_certificate(content, signer)
    entry = entry_of(signed, "certificate.issued", content["certificate"], deletion="d-1")
    return logged(signed, entry, signer=signer, **place)


def signed_certificate(content: dict[str, Any], signer: StatementSigner = SIGNER) -> str:
    digests = [hashlib.sha256(b"before").hexdigest(), hashlib.sha256(POSTERIOR).hexdigest()]
    subjects = [{"name": str(place), "digest": {"sha256": digest}} for place, digest in enumerate(digests)]
    return bundle(signer.sign(CERTIFICATE_TYPE, subjects, content))


def _root(leaves: Sequence[bytes]) -> str:
    return root_of([leaf_hash(one) for one in leaves]).hex()
