"""Signed statements with contents of a test's choice, and the log and data set that they need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from service.store.canonical_json import canonical_json
from service.store.log.checkpoints import write_checkpoint
from service.store.log.leaves import encode_leaf
from service.store.log.merkle import Tree, leaf_hash, root_of
from service.store.signing.statements import StatementSigner, key_id_of, statement_digest, write_bundle, write_pem
from vocabulary.bound import KantorovichConstants
from vocabulary.certificate import CERTIFICATE_TYPE, STATEMENT_TYPE, Bundle, LogProof

SIGNER = StatementSigner(bytes(range(32)), bytes(range(32, 64)))
POSTERIOR = b"the posterior after forgetting"
RECORDS = sorted(hashlib.sha256(bytes([number])).digest() for number in range(40))
"""Commitments to the records of a small data set."""
FORGOTTEN = (0, 7, 8, 39)
"""Positions of those that are forgotten: the first, the last, and two neighbours."""


def key_list(signer: StatementSigner = SIGNER, log: Any = (), statements: Any = (), **members: Any) -> bytes:
    """Return the list of a signer's keys; `log` and `statements` are further members of the two entries."""
    uses = ("statements", signer.public_key, statements), ("log", signer.log_public_key, log)
    keys = [
        {"keyid": key_id_of(key), "public_key_pem": write_pem(key), "use": use, **dict(more)} for use, key, more in uses
    ]
    return json.dumps({"origin": signer.origin, "keys": keys, "witnesses": [], **members}).encode()


class LogInMemory:
    """Log that holds only the given leaves."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        hashes = [leaf_hash(leaf) for leaf in leaves]
        tiles = Tree(lambda level, number: b"").append(0, hashes)
        self.tree = Tree(lambda level, number: tiles[level, number])

    def note(self, size: int, signer: StatementSigner = SIGNER) -> str:
        return write_checkpoint(signer, size, self.tree.root(size))


def entry_of(signed: str, action: str, concerns: str, **details: Any) -> bytes:
    at = datetime(2026, 11, 16, 8, 0, 5, tzinfo=UTC)
    return encode_leaf(action, "lethe", at, concerns, {**details, "statement": statement_digest(signed)})


def sign(
    predicate_type: str,
    subjects: Sequence[dict[str, Any]],
    predicate: dict[str, Any],
    signer: StatementSigner = SIGNER,
    log: dict[str, Any] | None = None,
) -> str:
    """Sign any statement, valid or not, and return its bundle."""
    content = {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": predicate_type, "predicate": predicate}
    return write_bundle(signer.sign(canonical_json(content)), None if log is None else LogProof.model_validate(log))


def logged(signed: str, entry: bytes, index: int = 5, size: int = 9, signer: StatementSigner = SIGNER) -> bytes:
    """Return the bundle of a statement whose entry is in a log."""
    leaves = [b"entry %d" % number for number in range(size)]
    leaves[index] = entry
    log = LogInMemory(leaves)
    proof = [node.hex() for node in log.tree.inclusion(index, size)]
    log_proof = LogProof(checkpoint=log.note(size, signer), entry=entry.decode(), index=index, proof=proof)
    return write_bundle(Bundle.model_validate_json(signed).envelope, log_proof).encode()


def predicate() -> dict[str, Any]:
    """Return all that a certificate states."""
    minimal = minimal_predicate()
    bound = {
        "epsilon_reverse": 2e-9,
        "reference": "the minimum",
        "direction": "epsilon bounds KL(processed ‖ reference)",
        "n_retained": 36,
        "constants": {
            **{name: 0.5 for name in KantorovichConstants.model_fields if name != "excess"},
            "coordinates": "in units of the widths",
        },
        "not_proved": [],
        "interval": None,
        "reasons": [],
    }
    return {
        **minimal,
        "bound": {**minimal["bound"], **bound},
        "regulation": "gdpr",
        "subjects": ["a" * 64],
        "named_records": [],
        "due_at": "2026-12-16T08:00:00.000Z",
        "model": {"id": "m-1", "name": "demo", "family": "mlp", "posterior": "variational", "config": {"hidden": 8}},
        "rungs": [
            {
                "name": "newton",
                "steps": 2,
                "epsilon": 1e-9,
                "level": "proved",
                "seconds": 0.5,
                "at_least": 0,
                "failure": None,
                "solver": "cholesky",
            }
        ],
        "effects": {"release": [], "pac_bayes": None, "membership": membership()},
        "seconds": 0.75,
        "erasure": erasure(),
        "not_proved": [],
        "software": {"name": "lethe", "version": "0.1.0", "sources_sha256": "2" * 64},
    }


def erasure() -> dict[str, Any]:
    """Return the files of the version before: its data set is gone, its posterior is due."""
    posterior = {"digest": hashlib.sha256(b"before").hexdigest(), "kind": "posterior"}
    return {
        "destroyed": [{"digest": "0" * 64, "kind": "dataset"}],
        "scheduled": [{"at": "2026-11-16T09:00:00.000Z", **posterior}],
    }


def membership() -> dict[str, Any]:
    side = {
        "forgotten": None,
        "retained": None,
        "forgotten_quantiles": [],
        "retained_quantiles": [],
        "never_seen_quantiles": [],
    }
    return {"before": side, "after": side, "worst": None, "n_forgotten": 4, "n_retained": 36, "n_never_seen": 0}


def minimal_predicate() -> dict[str, Any]:
    """Return the least that the verifier accepts as a certificate."""
    assumption = {"name": "curvature", "holds": True, "value": 2.5, "limit": 0, "meaning": "it curves upwards"}
    return {
        "certificate": "c-1",
        "deletion": "d-1",
        "received_at": "2026-11-16T08:00:00.000Z",
        "issued_at": "2026-11-16T08:00:05.000Z",
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "policy": {"epsilon": 1e-6, "level": "proved", "rungs": ["influence", "newton"], "seconds": None},
        "bound": {"epsilon": 1e-9, "level": "proved", "assumptions": [assumption]},
        **dataset_members(),
    }


def dataset_members() -> dict[str, Any]:
    retained = [record for position, record in enumerate(RECORDS) if position not in FORGOTTEN]
    # Each gap is between two retained records, or beside one at either end.
    neighbours = [0, 5, 6, 35]
    return {
        "dataset": {
            "before": {"digest": "0" * 64, "root": _root(RECORDS), "records": 40},
            "after": {"digest": "1" * 64, "root": _root(retained), "records": 36},
        },
        "forgotten": {
            "commitments": [RECORDS[position].hex() for position in FORGOTTEN],
            "before": {"places": list(FORGOTTEN), "proof": multiproof(RECORDS, FORGOTTEN)},
            "after": {
                "neighbours": [{"place": position, "commitment": retained[position].hex()} for position in neighbours],
                "proof": multiproof(retained, neighbours),
            },
        },
    }


def multiproof(leaves: Sequence[bytes], positions: Sequence[int]) -> list[str]:
    """Return the hashes that are needed to compute the root from the leaves at these positions."""

    def walk(start: int, end: int) -> list[str]:
        if not any(start <= position < end for position in positions):
            return [_root(leaves[start:end])]
        if end - start == 1:
            return []
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        return walk(start, middle) + walk(middle, end)

    return walk(0, len(leaves))


def certificate(
    change: Callable[[dict[str, Any]], object] = lambda _: None,
    signer: StatementSigner = SIGNER,
    content: dict[str, Any] | None = None,
    **placement: int,
) -> bytes:
    """Return a signed and logged certificate whose content was changed before signing."""
    content = predicate() if content is None else content
    change(content)
    signed = signed_certificate(content, signer)
    entry = entry_of(signed, "certificate.issued", content["certificate"], deletion="d-1")
    return logged(signed, entry, signer=signer, **placement)


def signed_certificate(content: dict[str, Any], signer: StatementSigner = SIGNER) -> str:
    digests = [hashlib.sha256(b"before").hexdigest(), hashlib.sha256(POSTERIOR).hexdigest()]
    subjects = [{"name": str(position), "digest": {"sha256": digest}} for position, digest in enumerate(digests)]
    return sign(CERTIFICATE_TYPE, subjects, content, signer)


def _root(leaves: Sequence[bytes]) -> str:
    return root_of([leaf_hash(leaf) for leaf in leaves]).hex()
