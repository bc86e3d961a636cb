"""Kinds of statements, and checks that their contents are consistent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .dataset import check_forgotten, check_present
from .reading import Rejected, digest_of, hash_at, list_at, number_at, object_at, text_at, time_at, whole_at

LEVELS = ("estimated", "proved", "retrained")
"""Ordered from the weakest to the strongest."""


def _check_receipt(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received = time_at(predicate, "received_at")
    digest = hashlib.sha256("\n".join(predicate.get("subjects", [])).encode()).hexdigest()
    if [digest_of(subject) for subject in statement["subject"]] != [digest]:
        raise Rejected("the digest of the statement's subject does not match the commitments")
    return [f"deletion {text_at(predicate, 'deletion')} was received at {received.isoformat()}"]


def _check_absence(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    _, issued = _times(predicate)
    models = number_at(predicate, "models_in_store")
    absence = f"none of {models:.0f} models held a record of its subjects, certified {issued.isoformat()}"
    return [*_check_receipt(statement, predicate), absence]


def _check_certificate(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received, issued = _times(predicate)
    if len(statement["subject"]) != 2:
        raise Rejected("a certificate must name the model version before and the one after")
    before, after = (digest_of(subject) for subject in statement["subject"])
    return [
        f"deletion {text_at(predicate, 'deletion')}, received {received.isoformat()}, certified {issued.isoformat()}",
        f"model version {before[:12]} was replaced by {after[:12]}",
        _check_records(object_at(predicate, "records")),
        check_forgotten(predicate),
        _check_bound(object_at(predicate, "bound"), object_at(predicate, "policy")),
    ]


def _check_destruction(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received, issued = _times(predicate)
    if len(statement["subject"]) != 1:
        raise Rejected("a certificate of destruction must name the last version of the model alone")
    last = digest_of(statement["subject"][0])
    dataset = hash_at(object_at(object_at(predicate, "dataset"), "before"), "digest").hex()
    destroyed = _erased_files(predicate)
    if not {last, dataset} <= destroyed:
        raise Rejected("the last version and its data set are not among the files that were or will be destroyed")
    return [
        f"deletion {text_at(predicate, 'deletion')}, received {received.isoformat()}, certified {issued.isoformat()}",
        f"the model was destroyed: version {last[:12]} was its last, {len(destroyed)} files are gone or due",
        _check_emptied(object_at(predicate, "records")),
        f"{len(check_present(predicate))} records of this deletion were in its data set",
    ]


def _erased_files(predicate: Mapping[str, Any]) -> set[str]:
    """Return the digests of the files that were destroyed or are due for destruction."""
    erasure = object_at(predicate, "erasure")
    return {hash_at(file, "digest").hex() for name in ("destroyed", "scheduled") for file in list_at(erasure, name)}


def _times(predicate: Mapping[str, Any]) -> tuple[datetime, datetime]:
    received, issued = time_at(predicate, "received_at"), time_at(predicate, "issued_at")
    if issued < received:
        raise Rejected("the certificate was issued before its request was received")
    return received, issued


def _check_records(records: Mapping[str, Any]) -> str:
    before, after, forgotten = (number_at(records, name) for name in ("before", "after", "forgotten_in_batch"))
    if forgotten <= 0 or after <= 0 or before - after != forgotten:
        raise Rejected("the record counts do not add up")
    return f"records {before:.0f} -> {after:.0f}: {forgotten:.0f} forgotten in this batch"


def _check_emptied(records: Mapping[str, Any]) -> str:
    before, after, forgotten = (whole_at(records, name) for name in ("before", "after", "forgotten_in_batch"))
    if not 0 < before == forgotten or after != 0:
        raise Rejected("the record counts do not add up")
    return f"records {before} -> 0: none is left"


def _check_bound(bound: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    epsilon, limit = number_at(bound, "epsilon"), number_at(policy, "epsilon")
    if not 0 <= epsilon <= limit:
        raise Rejected(f"the bound {epsilon:.3g} is not within the policy of {limit:.3g}")
    level, required = text_at(bound, "level"), text_at(policy, "level")
    assumptions = bound.get("assumptions")
    if level not in LEVELS or required not in LEVELS or not isinstance(assumptions, list) or not assumptions:
        raise Rejected(f"level {level!r} does not support a bound")
    if LEVELS.index(level) < LEVELS.index(required):
        raise Rejected(f"the level {level!r} is weaker than {required!r}, which the policy requires")
    if level == "retrained" and epsilon != 0:
        raise Rejected("the level is 'retrained' but the bound is not 0")
    for assumption in assumptions:
        if not isinstance(assumption, dict) or assumption.get("holds") is not True:
            raise Rejected(f"the level is {level!r} but one of the assumptions does not hold")
    stated = f"KL <= {epsilon:.3e}" if level != "estimated" else _check_estimate(bound, epsilon)
    return f"{stated} (policy {limit:.1e}), level {level}, all {len(assumptions)} assumptions hold"


def _check_estimate(bound: Mapping[str, Any], epsilon: float) -> str:
    """Check that epsilon is the upper end of the interval."""
    interval = bound.get("interval")
    if not isinstance(interval, list) or len(interval) != 2:
        raise Rejected("the level is 'estimated' but the interval is missing")
    low, high = (number_at({"interval": end}, "interval") for end in interval)
    if not 0 <= low <= high == epsilon:
        raise Rejected("the bound is not the upper end of the interval of the estimate")
    return f"estimated at {low:.3e} to {high:.3e} nats"


def check_posterior(statement: Mapping[str, Any], posterior: bytes) -> str:
    digest = hashlib.sha256(posterior).hexdigest()
    if digest != digest_of(statement["subject"][-1]):
        raise Rejected("the model file is not the version that the certificate names")
    return f"the model file matches that version (sha256 {digest[:12]})"


@dataclass(frozen=True)
class Kind:
    name: str
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]
    signed_at: str
    """Member with the time of signing."""
    action: str
    """Action of its entry in the log."""
    concerns: str
    """Member whose value its entry in the log concerns."""
    is_always_logged: bool = False


KINDS = {
    "urn:lethe:receipt:v1": Kind("receipt", _check_receipt, "received_at", "deletion.received", "deletion"),
    "urn:lethe:absence:v1": Kind(
        "certificate of absence", _check_absence, "issued_at", "absence.certified", "deletion"
    ),
    "urn:lethe:certificate:v1": Kind(
        "certificate", _check_certificate, "issued_at", "certificate.issued", "certificate", True
    ),
    "urn:lethe:destruction:v1": Kind(
        "certificate of destruction", _check_destruction, "issued_at", "certificate.issued", "certificate", True
    ),
}
