"""Kinds of statements, and checks that their contents are consistent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .dataset import check_forgotten, check_present
from .erasure import check_erasure
from .reading import (
    Rejected,
    digest_of,
    hash_at,
    hashes_at,
    number_at,
    object_at,
    text_at,
    texts_at,
    time_at,
    whole_at,
)

LEVELS = ("estimated", "proved", "retrained")
"""Ordered from the weakest to the strongest."""
REFERENCES = {
    "stored draws": "reference: the stored draws (weaker promise): what they themselves hold is taken as given",
    "posterior": "reference: the posterior given the retained records",
}
"""What a sample set is compared with, from the weaker promise to the stronger, and how it is told."""


def _check_receipt(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    promise = object_at(predicate, "log")
    hash_at(promise, "leaf")
    seconds = whole_at(promise, "within_seconds")
    entry = f"an entry in the log {text_at(promise, 'origin')} is promised within {seconds} seconds of receipt"
    return [_check_request(statement, predicate), entry]


def _check_absence(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    _, issued = _times(predicate)
    models = whole_at(predicate, "models_in_store")
    absence = f"none of {models} models held a record of its subjects, certified {issued.isoformat()}"
    return [_check_request(statement, predicate), absence]


def _check_request(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> str:
    received = time_at(predicate, "received_at")
    commitments = hashes_at(predicate, "subjects") if "subjects" in predicate else []
    digest = hashlib.sha256("\n".join(commitment.hex() for commitment in commitments).encode()).hexdigest()
    if [digest_of(subject) for subject in statement["subject"]] != [digest]:
        raise Rejected("the digest of the statement's subject does not match the commitments")
    return f"deletion {text_at(predicate, 'deletion')} was received at {received.isoformat()}"


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
        *_check_reference(object_at(predicate, "bound"), object_at(predicate, "policy")),
        *_check_files(predicate, before, after),
    ]


def _check_files(predicate: Mapping[str, Any], before: str, after: str) -> list[str]:
    """Check the other files of the model, which earlier certificates do not list."""
    if "erasure" not in predicate:
        return []
    datasets = object_at(predicate, "dataset")
    digests = (hash_at(object_at(datasets, side), "digest").hex() for side in ("before", "after"))
    return [check_erasure(predicate, *zip((before, after), digests, strict=True))]


def _check_destruction(statement: Mapping[str, Any], predicate: Mapping[str, Any]) -> list[str]:
    received, issued = _times(predicate)
    if len(statement["subject"]) != 1:
        raise Rejected("a certificate of destruction must name the last version of the model alone")
    last = digest_of(statement["subject"][0])
    dataset = hash_at(object_at(object_at(predicate, "dataset"), "before"), "digest").hex()
    return [
        f"deletion {text_at(predicate, 'deletion')}, received {received.isoformat()}, certified {issued.isoformat()}",
        f"the model was destroyed: version {last[:12]} was its last",
        check_erasure(predicate, before=(last, dataset), after=()),
        _check_emptied(object_at(predicate, "records")),
        f"{len(check_present(predicate))} records of this deletion were in its data set",
    ]


def _times(predicate: Mapping[str, Any]) -> tuple[datetime, datetime]:
    received, issued = time_at(predicate, "received_at"), time_at(predicate, "issued_at")
    if issued < received:
        raise Rejected("the certificate was issued before its request was received")
    return received, issued


def _check_records(records: Mapping[str, Any]) -> str:
    before, after, forgotten = (whole_at(records, name) for name in ("before", "after", "forgotten_in_batch"))
    if forgotten == 0 or after == 0 or before - after != forgotten:
        raise Rejected("the record counts do not add up")
    return f"records {before} -> {after}: {forgotten} forgotten in this batch"


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


def _check_reference(bound: Mapping[str, Any], policy: Mapping[str, Any]) -> list[str]:
    """Check what a sample set is compared with. Other posteriors, and earlier certificates, do not say."""
    if bound.get("reference_kind") is None:
        return []
    reference = text_at(bound, "reference_kind")
    required = text_at(policy, "reference") if "reference" in policy else "posterior"
    order = list(REFERENCES)
    if reference not in order or required not in order:
        raise Rejected("the kind of reference is unknown")
    if order.index(reference) < order.index(required):
        raise Rejected(f"the reference is the {reference}, weaker than the {required} that the policy requires")
    return [REFERENCES[reference]]


def check_posterior(statement: Mapping[str, Any], posterior: bytes) -> str:
    digest = hashlib.sha256(posterior).hexdigest()
    if digest != digest_of(statement["subject"][-1]):
        raise Rejected("the model file is not the version that the certificate names")
    return f"the model file matches that version (sha256 {digest[:12]})"


def check_replaced(predicate: Mapping[str, Any]) -> list[str]:
    """Check what the statement says about the one in whose stead it was issued."""
    if "replaces" not in predicate:
        return []
    replaced = object_at(predicate, "replaces")
    statement = hash_at(replaced, "statement").hex()
    reason = text_at(replaced, "reason")
    return [f"it replaces {text_at(replaced, 'certificate')} (statement {statement[:12]}): {reason}"]


def sentences_not_proved(predicate: Mapping[str, Any]) -> list[str]:
    """Return what the statement itself says that it does not show."""
    bound = predicate.get("bound")
    return [*(texts_at(bound, "not_proved") if isinstance(bound, dict) else ()), *texts_at(predicate, "not_proved")]


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
    is_always_logged: bool = True
    """Whether it is signed only together with its place in the log."""
    promises_entry: bool = False
    """Whether it names the hash of its entry, instead of the entry naming its hash."""


KINDS = {
    "urn:lethe:receipt:v1": Kind(
        "receipt",
        _check_receipt,
        "received_at",
        "deletion.received",
        "deletion",
        is_always_logged=False,
        promises_entry=True,
    ),
    "urn:lethe:absence:v1": Kind(
        "certificate of absence", _check_absence, "issued_at", "absence.certified", "deletion", is_always_logged=False
    ),
    "urn:lethe:certificate:v1": Kind(
        "certificate", _check_certificate, "issued_at", "certificate.issued", "certificate"
    ),
    "urn:lethe:destruction:v1": Kind(
        "certificate of destruction", _check_destruction, "issued_at", "certificate.issued", "certificate"
    ),
}
