"""Verification of a bundle, from the file to the last check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .confirmation import find_missing
from .keys import STATEMENTS, Key, KeyRing, load_keys
from .log import Inclusion, find_place, require_origin
from .reading import Rejected, decode_base64, is_signed, list_at, object_at, text_at, time_at
from .statements import KINDS, Kind, check_posterior, check_replaced, sentences_not_proved
from .strict_json import parse_object

BUNDLE_FORMAT = "lethe-bundle-v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MAX_BUNDLE_BYTES = 64 << 20
NAME_NOT_PROVED = "The name of the log was not compared with anything: the keys were given without it."


@dataclass(frozen=True)
class Verified:
    """The checks that passed, in order, and the content of the statement."""

    kind: str
    checks: tuple[str, ...]
    not_proved: tuple[str, ...]
    predicate: Mapping[str, Any]
    content: bytes

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {"verified": True, "outcome": "verified", **self.findings()}

    def findings(self) -> dict[str, Any]:
        """Return what was found, without the outcome."""
        return {
            "kind": self.kind,
            "checks": self.checks,
            "not_proved": self.not_proved,
            "predicate": self.predicate,
        }


class Unconfirmed(Rejected):
    """Nothing is wrong, but evidence is missing. The message says which, and how to get it."""

    def __init__(self, missing: str, so_far: Verified) -> None:
        super().__init__(missing)
        self.so_far = so_far
        """All checks that could be made; they passed."""


def verify(
    content: bytes,
    keys: bytes,
    posterior: bytes | None = None,
    later: bytes | None = None,
    witnesses: Sequence[str] = (),
    origin: str | None = None,
    now: datetime | None = None,
) -> Verified:
    """Verify a bundle. Raises Rejected, or Unconfirmed (a kind of it) if only evidence is missing; nothing else.

    `keys` is the list of keys that Lethe publishes (JSON), or one or more public keys (PEM). `posterior` is the model
    file to compare with the certificate. `later` is a consistency proof from the bundle's checkpoint to a later one,
    from `/api/v1/log/proof/consistency`. `witnesses` are the keys of witnesses that must have cosigned the checkpoint.
    `origin` is the name of the log, if it is known from elsewhere than `keys`. `now` decides only whether a promised
    entry is overdue.
    """
    ring = load_keys(keys, origin)
    bundle = open_bundle(content)
    signed = check_signed(object_at(bundle, "envelope"), ring)
    key, kind, predicate = signed.key, signed.kind, signed.predicate
    checks = ["the file is a Lethe bundle in canonical form", *signed.checks]
    inclusion = _find_place(bundle, kind, predicate, signed.payload, ring, witnesses, later)
    if inclusion is not None:
        key.require_trusted(inclusion.at)
        if kind.promises_entry:
            checks.append(f"the entry is dated {inclusion.at.isoformat()}, within the promised time")
        checks += inclusion.checks
    if posterior is not None:
        checks.append(check_posterior(signed.statement, posterior))
    not_proved = [*sentences_not_proved(predicate), *([NAME_NOT_PROVED] if ring.origin is None else [])]
    verified = Verified(kind.name, tuple(checks), tuple(not_proved), predicate, content)
    if missing := find_missing(inclusion, key, kind, predicate, now):
        raise Unconfirmed(missing, verified)
    return verified


@dataclass(frozen=True)
class Signed:
    """A statement whose signature and content were checked, but not its place in the log."""

    key: Key
    kind: Kind
    payload: bytes
    statement: Mapping[str, Any]
    predicate: Mapping[str, Any]
    checks: Sequence[str]


def check_signed(envelope: Mapping[str, Any], ring: KeyRing) -> Signed:
    """Check the signature and the content of the statement in an envelope. Raises Rejected."""
    key, payload = _check_signature(envelope, ring)
    statement = _open_statement(payload)
    kind = KINDS.get(text_at(statement, "predicateType"))
    if kind is None:
        raise Rejected("this verifier does not know this kind of statement; use a newer one")
    predicate = object_at(statement, "predicate")
    key.require_trusted(time_at(predicate, kind.signed_at))
    require_origin(predicate, ring.origin)
    checks = [
        f"signed by key {key.key_id}",
        f"the statement is a {kind.name}",
        *kind.check(statement, predicate),
        *check_replaced(predicate),
    ]
    return Signed(key, kind, payload, statement, predicate, checks)


def _find_place(
    bundle: Mapping[str, Any],
    kind: Kind,
    predicate: Mapping[str, Any],
    payload: bytes,
    ring: KeyRing,
    witnesses: Sequence[str],
    later: bytes | None,
) -> Inclusion | None:
    if "log" in bundle:
        return find_place(object_at(bundle, "log"), kind, predicate, payload, ring, witnesses, later)
    if kind.is_always_logged:
        raise Rejected("the bundle does not show its place in the log; download it again")
    return None


def open_bundle(content: bytes) -> Mapping[str, Any]:
    """Read a bundle, which must be canonical. Raises Rejected."""
    if len(content) > MAX_BUNDLE_BYTES:
        raise Rejected("the file is too large to be a bundle")
    bundle = parse_object(content, "the file")
    canonical = json.dumps(bundle, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if canonical.encode() != content:
        raise Rejected("the file is not in canonical form: it was changed or reformatted after it was issued")
    if set(bundle) - {"log"} != {"format", "envelope"} or bundle["format"] != BUNDLE_FORMAT:
        raise Rejected(f"the file is not a bundle of format {BUNDLE_FORMAT}")
    return bundle


def _check_signature(envelope: Mapping[str, Any], ring: KeyRing) -> tuple[Key, bytes]:
    signatures = envelope.get("signatures")
    if set(envelope) != {"payload", "payloadType", "signatures"} or envelope["payloadType"] != PAYLOAD_TYPE:
        raise Rejected("the envelope is not a DSSE envelope around an in-toto statement")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise Rejected("the envelope must carry exactly one signature")
    key_id = signatures[0].get("keyid")
    if set(signatures[0]) != {"keyid", "sig"} or not isinstance(key_id, str) or key_id not in ring.keys:
        raise Rejected(f"the bundle is not signed by one of the given keys ({', '.join(ring.keys)}); fetch its key")
    payload, key = decode_base64(text_at(envelope, "payload"), "payload"), ring.keys[key_id]
    signature = decode_base64(text_at(signatures[0], "sig"), "signature")
    if not is_signed(key.public, signature, pre_authentication_encoding(PAYLOAD_TYPE, payload)):
        raise Rejected("the signature does not match the content: one of them was changed")
    if not key.may_sign(STATEMENTS):
        raise Rejected("the bundle is signed by a key that is not for statements")
    return key, payload


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return what DSSE signs: payload type and payload, each with its length."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(payload), payload)


def _open_statement(payload: bytes) -> Mapping[str, Any]:
    statement = parse_object(payload, "the signed payload")
    if statement.get("_type") != STATEMENT_TYPE:
        raise Rejected("the signed payload is not an in-toto statement")
    list_at(statement, "subject")
    return statement
