"""Bundles before they are signed: every part can be changed, and is signed and logged as it then is."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from service.store.canonical_json import canonical_json
from service.store.log.checkpoints import write_checkpoint
from service.store.log.merkle import leaf_hash
from service.store.signing.statements import StatementSigner
from tests.bundles import (
    POSTERIOR,
    RECORDS,
    SIGNER,
    LogInMemory,
    dataset_members,
    predicate,
)
from vocabulary.certificate import (
    ABSENCE_TYPE,
    CERTIFICATE_TYPE,
    DESTRUCTION_TYPE,
    PAYLOAD_TYPE,
    RECEIPT_TYPE,
    STATEMENT_TYPE,
)

ACTIONS = {
    RECEIPT_TYPE: ("deletion.received", "deletion"),
    ABSENCE_TYPE: ("absence.certified", "deletion"),
    CERTIFICATE_TYPE: ("certificate.issued", "certificate"),
    DESTRUCTION_TYPE: ("certificate.issued", "certificate"),
}
RECEIVED, ISSUED, LOGGED = "2026-11-16T08:00:00.000Z", "2026-11-16T08:00:05.000Z", "2026-11-16T08:00:05.000120Z"
SUBJECTS = sorted(hashlib.sha256(name).hexdigest() for name in (b"first", b"second"))


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _write_statement(content: dict[str, Any]) -> bytes:
    """Return RFC 8785 as the signer does, or JSON at least."""
    try:
        return canonical_json(content)
    except ValueError:
        return write_json(content)


def _identity(bundle: dict[str, Any]) -> dict[str, Any]:
    return bundle


@dataclass(frozen=True)
class Draft:
    """A statement with its place in the log."""

    statement: dict[str, Any]
    signer: StatementSigner = SIGNER
    log_signer: StatementSigner = SIGNER
    is_logged: bool = True
    index: int = 5
    size: int = 9
    entry: dict[str, Any] = field(default_factory=dict)
    """Members of the entry that differ from those that belong to the statement."""
    payload: Callable[[bytes], bytes] = bytes
    """Changes the bytes of the statement before they are signed."""
    note: Callable[[str], str] = str
    """Changes the checkpoint after it is signed."""
    bundle: Callable[[dict[str, Any]], dict[str, Any]] = _identity
    """Changes the bundle last of all."""

    @property
    def signed(self) -> bytes:
        """The bytes that are signed. A receipt names its entry first."""
        if self.statement.get("predicateType") == RECEIPT_TYPE:
            content = self.statement.get("predicate")
            promise = content.get("log") if isinstance(content, dict) else None
            if isinstance(promise, dict) and promise.get("leaf") == "":
                promise["leaf"] = leaf_hash(self.leaf(b"")).hex()
        return self.payload(_write_statement(self.statement))

    def leaf(self, payload: bytes) -> bytes:
        """Return the entry of the log."""
        content = self.statement.get("predicate")
        content = content if isinstance(content, dict) else {}
        action, concerns = ACTIONS.get(str(self.statement.get("predicateType")), ("certificate.issued", "certificate"))
        details = {"statement": hashlib.sha256(payload).hexdigest()} if payload else {"subjects": SUBJECTS}
        entry = {
            "action": action,
            "actor": "lethe",
            "at": LOGGED,
            "concerns": content.get(concerns),
            "details": details,
        }
        return write_json({**entry, **self.entry})

    def log(self, size: int | None = None) -> LogInMemory:
        """Return the log that holds the entry, or what it has become."""
        leaves = [b"entry %d" % number for number in range(self.size if size is None else size)]
        leaves[self.index] = self.leaf(b"" if self.statement.get("predicateType") == RECEIPT_TYPE else self.signed)
        return LogInMemory(leaves)

    def write(self) -> bytes:
        """Return the bundle."""
        signed = self.signed
        signature = {"keyid": self.signer.key_id, "sig": self.signer.sign_detached(signed, PAYLOAD_TYPE)}
        payload = base64.b64encode(signed).decode()
        envelope = {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": [signature]}
        bundle: dict[str, Any] = {"format": "lethe-bundle-v1", "envelope": envelope}
        if self.is_logged:
            log = self.log()
            entry = self.leaf(b"" if self.statement.get("predicateType") == RECEIPT_TYPE else signed).decode()
            proof = [node.hex() for node in log.tree.inclusion(self.index, self.size)]
            note = self.note(log.note(self.size, self.log_signer))
            bundle["log"] = {"checkpoint": note, "entry": entry, "index": self.index, "proof": proof}
        return write_json(self.bundle(bundle))

    def later(self, size: int, signer: StatementSigner | None = None, note: Callable[[str], str] = str) -> bytes:
        """Return the proof that a later log of this size continues the bundle's."""
        log = self.log(size)
        proof = [node.hex() for node in log.tree.consistency(self.size, size)]
        checkpoint = note(write_checkpoint(signer or self.log_signer, size, log.tree.root(size)))
        return json.dumps({"old": self.size, "new": size, "proof": proof, "checkpoint": checkpoint}).encode()

    def change(self, **changes: Any) -> Draft:
        return replace(self, **changes)


def statement(predicate_type: str, subjects: list[str], content: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": f"subject/{number}", "digest": {"sha256": digest}} for number, digest in enumerate(subjects)]
    return {"_type": STATEMENT_TYPE, "predicateType": predicate_type, "subject": named, "predicate": content}


def request_digest() -> str:
    return hashlib.sha256("\n".join(SUBJECTS).encode()).hexdigest()


def receipt() -> Draft:
    promise = {"leaf": "", "origin": SIGNER.origin, "within_seconds": 2}
    content = {"deletion": "d-1", "subjects": SUBJECTS, "received_at": RECEIVED, "regulation": "gdpr", "log": promise}
    return Draft(statement(RECEIPT_TYPE, [request_digest()], content), entry={"at": "2026-11-16T08:00:00.000120Z"})


def absence() -> Draft:
    content = {
        "deletion": "d-1",
        "regulation": "gdpr",
        "subjects": SUBJECTS,
        "received_at": RECEIVED,
        "issued_at": ISSUED,
        "models_in_store": 3,
        "log": {"origin": SIGNER.origin},
        "statement": "No model holds records of the subjects.",
        "not_proved": ["Records kept elsewhere are not covered."],
        "software": {"name": "lethe", "version": "0.1.0", "sources_sha256": "0" * 64},
    }
    return Draft(statement(ABSENCE_TYPE, [request_digest()], content))


def certificate(**members: Any) -> Draft:
    versions = [hashlib.sha256(b"before").hexdigest(), hashlib.sha256(POSTERIOR).hexdigest()]
    content = {**predicate(), "log": {"origin": SIGNER.origin}, **members}
    return Draft(statement(CERTIFICATE_TYPE, versions, content))


def estimated() -> Draft:
    draft = certificate()
    content = draft.statement["predicate"]
    content["policy"]["level"] = "estimated"
    content["bound"].update(level="estimated", interval=[1e-10, 1e-9])
    return draft


def replacement() -> Draft:
    replaced = {"certificate": "c-0", "statement": "7" * 64, "reason": "The key was revoked."}
    return certificate(replaces=replaced)


def destruction() -> Draft:
    last, members = hashlib.sha256(b"before").hexdigest(), dataset_members()
    forgotten = {name: members["forgotten"][name] for name in ("commitments", "before")}
    files = sorted(("0" * 64, last))
    content = {
        "certificate": "c-1",
        "deletion": "d-1",
        "regulation": "gdpr",
        "subjects": SUBJECTS,
        "named_records": [],
        "received_at": RECEIVED,
        "due_at": "2026-12-16T08:00:00.000Z",
        "issued_at": ISSUED,
        "log": {"origin": SIGNER.origin},
        "model": predicate()["model"],
        "records": {"before": len(RECORDS), "after": 0, "forgotten_in_batch": len(RECORDS)},
        "dataset": {"before": members["dataset"]["before"]},
        "forgotten": forgotten,
        "erasure": {
            "destroyed": [],
            "scheduled": [{"at": ISSUED, "digest": digest, "kind": "posterior"} for digest in files],
        },
        "statement": "The model held no other records and was destroyed.",
        "not_proved": ["Copies made earlier are not covered."],
        "software": {"name": "lethe", "version": "0.1.0", "sources_sha256": "2" * 64},
    }
    return Draft(statement(DESTRUCTION_TYPE, [last], content))


KINDS: dict[str, Callable[[], Draft]] = {
    "receipt": receipt,
    "absence": absence,
    "certificate": certificate,
    "estimated": estimated,
    "replacement": replacement,
    "destruction": destruction,
}
