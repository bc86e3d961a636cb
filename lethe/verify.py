"""Checks a receipt or certificate with nothing but the file and our public key: no network, database or server.

Needs only `cryptography`, shares no code with the signer, and says line by line what it checked. It speaks of what
was signed and of its inner consistency; it cannot recompute a bound, which would take the data that was erased.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

BUNDLE_FORMAT = "lethe-bundle-v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
LARGEST_BUNDLE = 16 << 20
LEVELS = ("estimated", "proved", "retrained")
"""From the weakest to the strongest."""
SHA256 = re.compile(r"[0-9a-f]{64}")


class Rejected(Exception):
    """The bundle does not hold; the message says which check failed and why."""


@dataclass(frozen=True)
class Verified:
    """What was checked, in order, and what the file says."""

    kind: str
    checks: tuple[str, ...]
    predicate: Mapping[str, Any]
    content: bytes


def verify(content: bytes, public_key_pem: bytes, posterior: bytes | None = None) -> Verified:
    """Check a bundle; raises Rejected. `posterior` is the model file that the certificate speaks of, if at hand."""
    key = _load_key(public_key_pem)
    envelope = _open_bundle(content)
    payload = _check_signature(envelope, key)
    statement = _open_statement(payload)
    kind, check_predicate = _KINDS.get(_text(statement, "predicateType"), (None, None))
    if kind is None or check_predicate is None:
        raise Rejected("the statement is of a kind this verifier does not know; use a newer one")
    predicate = _object(statement, "predicate")
    checks = [
        "the file is a Lethe bundle, unchanged to the byte",
        f"the signature is by key {_key_id(key)}",
        f"the signed statement is a {kind}",
        *check_predicate(statement, predicate),
    ]
    if posterior is not None:
        checks.append(_check_posterior(statement, posterior))
    return Verified(kind, tuple(checks), predicate, content)


def _load_key(pem: bytes) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise Rejected("the key file is not a public key in PEM form") from error
    if not isinstance(key, Ed25519PublicKey):
        raise Rejected("the key is not an Ed25519 public key")
    return key


def _open_bundle(content: bytes) -> Mapping[str, Any]:
    if len(content) > LARGEST_BUNDLE:
        raise Rejected("the file is too large to be a bundle")
    bundle = _parse(content, "the file")
    if json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode() != content:
        raise Rejected("the file is not in canonical form: it was changed or reformatted after it was issued")
    if set(bundle) != {"format", "envelope"} or bundle["format"] != BUNDLE_FORMAT:
        raise Rejected(f"the file is not a bundle of format {BUNDLE_FORMAT}")
    return _object(bundle, "envelope")


def _check_signature(envelope: Mapping[str, Any], key: Ed25519PublicKey) -> bytes:
    signatures = envelope.get("signatures")
    if set(envelope) != {"payload", "payloadType", "signatures"} or envelope["payloadType"] != PAYLOAD_TYPE:
        raise Rejected("the envelope is not a DSSE envelope around an in-toto statement")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise Rejected("the envelope must carry exactly one signature")
    if set(signatures[0]) != {"keyid", "sig"} or signatures[0]["keyid"] != _key_id(key):
        raise Rejected(f"the bundle was not signed by this key ({_key_id(key)}); fetch the key it names")
    payload = _decode(_text(envelope, "payload"), "payload")
    try:
        key.verify(_decode(_text(signatures[0], "sig"), "signature"), _pre_authentication(payload))
    except InvalidSignature:
        raise Rejected("the signature does not fit the content: one of them was changed") from None
    return payload


def _open_statement(payload: bytes) -> Mapping[str, Any]:
    statement = _parse(payload, "the signed payload")
    if statement.get("_type") != STATEMENT_TYPE or not isinstance(statement.get("subject"), list):
        raise Rejected("the signed payload is not an in-toto statement")
    return statement


def _check_receipt(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received = _time(predicate, "received_at")
    digest = hashlib.sha256("\n".join(predicate.get("subjects", [])).encode()).hexdigest()
    if [_digest(subject) for subject in statement["subject"]] != [digest]:
        raise Rejected("the receipt's digest does not fit the subjects it names")
    return [f"deletion {_text(predicate, 'deletion')} was received at {received.isoformat()}"]


def _check_absence(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received, issued = _time(predicate, "received_at"), _time(predicate, "issued_at")
    if issued < received:
        raise Rejected("the certificate was issued before its request was received")
    told = _check_receipt(statement, predicate)
    models = _number(predicate, "models_in_store")
    return [*told, f"none of {models:.0f} models held a record of its subjects, certified {issued.isoformat()}"]


def _check_certificate(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received, issued = _time(predicate, "received_at"), _time(predicate, "issued_at")
    if issued < received:
        raise Rejected("the certificate was issued before its request was received")
    if len(statement["subject"]) != 2:
        raise Rejected("a certificate must name the model version before and the one after")
    before, after = (_digest(subject) for subject in statement["subject"])
    return [
        f"deletion {_text(predicate, 'deletion')}, received {received.isoformat()}, certified {issued.isoformat()}",
        f"model version {before[:12]} was replaced by {after[:12]}",
        _check_records(_object(predicate, "records")),
        _check_bound(_object(predicate, "bound"), _object(predicate, "policy")),
    ]


def _check_records(records: Mapping[str, Any]) -> str:
    before, after, forgotten = (_number(records, name) for name in ("before", "after", "forgotten_in_batch"))
    if forgotten <= 0 or after <= 0 or before - after != forgotten:
        raise Rejected("the record counts do not add up")
    return f"records {before:.0f} -> {after:.0f}: {forgotten:.0f} forgotten in this batch"


def _check_bound(bound: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    epsilon, limit = _number(bound, "epsilon"), _number(policy, "epsilon")
    if not 0 <= epsilon <= limit:
        raise Rejected(f"the bound {epsilon:.3g} is not within the policy of {limit:.3g}")
    level, required = _text(bound, "level"), _text(policy, "level")
    assumptions = bound.get("assumptions")
    if level not in LEVELS or required not in LEVELS or not isinstance(assumptions, list) or not assumptions:
        raise Rejected(f"level {level!r} does not support a bound")
    if LEVELS.index(level) < LEVELS.index(required):
        raise Rejected(f"the level {level!r} is weaker than {required!r}, which the policy asks for")
    if level == "retrained" and epsilon != 0:
        raise Rejected("the certificate says 'retrained' with a bound that is not 0")
    for assumption in assumptions:
        if not isinstance(assumption, dict) or assumption.get("holds") is not True:
            raise Rejected(f"the certificate says {level!r} although one of its assumptions does not hold")
    stated = f"KL <= {epsilon:.3e}" if level != "estimated" else _check_estimate(bound, epsilon)
    return f"{stated} (policy {limit:.1e}), level {level}, all {len(assumptions)} assumptions hold"


def _check_estimate(bound: Mapping[str, Any], epsilon: float) -> str:
    """An estimate is stated as the upper end of its interval, and is no proof."""
    interval = bound.get("interval")
    if not isinstance(interval, list) or len(interval) != 2:
        raise Rejected("the certificate says 'estimated' without the interval of the estimate")
    low, high = (_number({"interval": end}, "interval") for end in interval)
    if not 0 <= low <= high == epsilon:
        raise Rejected("the bound is not the upper end of the interval that it was estimated with")
    return f"KL estimated at {low:.3e} to {high:.3e}"


def _check_posterior(statement: Mapping[str, Any], posterior: bytes) -> str:
    digest = hashlib.sha256(posterior).hexdigest()
    if digest != _digest(statement["subject"][-1]):
        raise Rejected("the model file is not the version that the certificate speaks of")
    return f"the model file is that version (sha256 {digest[:12]})"


_KINDS: dict[str, tuple[str, Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]]] = {
    "urn:lethe:receipt:v1": ("receipt", _check_receipt),
    "urn:lethe:certificate:v1": ("certificate", _check_certificate),
    "urn:lethe:absence:v1": ("certificate of absence", _check_absence),
}


def _pre_authentication(payload: bytes) -> bytes:
    """What DSSE signs: the type and the payload with their lengths."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _parse(content: bytes, what: str) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise Rejected(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise Rejected(f"{what} is not a JSON object")
    return value


def _decode(text: str, what: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Rejected(f"the {what} is not base64") from None
    if base64.b64encode(content).decode() != text:
        raise Rejected(f"the {what} is not in canonical base64")
    return content


def _object(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise Rejected(f"{name} is missing")
    return value


def _text(parent: Mapping[str, Any], name: str) -> str:
    value = parent.get(name)
    if not isinstance(value, str):
        raise Rejected(f"{name} is missing")
    return value


def _number(parent: Mapping[str, Any], name: str) -> float:
    value = parent.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected(f"{name} is not a number")
    return float(value)


def _time(parent: Mapping[str, Any], name: str) -> datetime:
    try:
        return datetime.fromisoformat(_text(parent, name))
    except ValueError:
        raise Rejected(f"{name} is not a time") from None


def _digest(subject: Any) -> str:
    digest = subject.get("digest", {}).get("sha256") if isinstance(subject, dict) else None
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise Rejected("a subject of the statement has no SHA-256")
    return digest
