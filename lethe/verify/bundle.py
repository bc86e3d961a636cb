"""Verification of a bundle, from the file to the last check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .keys import Key, KeyRing, load_keys
from .log import check_log
from .reading import Rejected, decode_base64, is_signed, object_at, parse_object, text_at, time_at
from .statements import KINDS, check_posterior

BUNDLE_FORMAT = "lethe-bundle-v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MAX_BUNDLE_BYTES = 64 << 20


@dataclass(frozen=True)
class Verified:
    """The checks that passed, in order, and the content of the statement."""

    kind: str
    checks: tuple[str, ...]
    predicate: Mapping[str, Any]
    content: bytes

    @property
    def not_proved(self) -> list[str]:
        return [*self.predicate.get("bound", {}).get("not_proved", []), *self.predicate.get("not_proved", [])]

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "verified": True,
            "kind": self.kind,
            "checks": self.checks,
            "not_proved": self.not_proved,
            "predicate": self.predicate,
        }


def verify(
    content: bytes,
    keys: bytes,
    posterior: bytes | None = None,
    later: bytes | None = None,
    witnesses: Sequence[str] = (),
) -> Verified:
    """Verify a bundle. Raises Rejected.

    `keys` is the list of keys that Lethe publishes (JSON), or one or more public keys (PEM). `posterior` is the model
    file to compare with the certificate. `later` is a consistency proof from the bundle's checkpoint to a later one,
    from `/api/v1/log/proof/consistency`. `witnesses` are the keys of witnesses that must have cosigned the checkpoint.
    """
    ring = load_keys(keys)
    bundle = _open_bundle(content)
    key, payload = _check_signature(object_at(bundle, "envelope"), ring)
    statement = _open_statement(payload)
    kind = KINDS.get(text_at(statement, "predicateType"))
    if kind is None:
        raise Rejected("this verifier does not know this kind of statement; use a newer one")
    predicate = object_at(statement, "predicate")
    checks = [
        "the file is a Lethe bundle in canonical form",
        f"signed by key {key.key_id}{key.trusted_at(time_at(predicate, kind.signed_at))}",
        f"the statement is a {kind.name}",
        *kind.check(statement, predicate),
        *check_log(bundle, kind, predicate, payload, ring, witnesses, later),
    ]
    if posterior is not None:
        checks.append(check_posterior(statement, posterior))
    return Verified(kind.name, tuple(checks), predicate, content)


def _open_bundle(content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_BUNDLE_BYTES:
        raise Rejected("the file is too large to be a bundle")
    bundle = parse_object(content, "the file")
    canonical = json.dumps(bundle, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if canonical.encode(errors="replace") != content:  # "replace" changes lone surrogates, so they are rejected
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
    return key, payload


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return what DSSE signs: payload type and payload, each with its length."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(payload), payload)


def _open_statement(payload: bytes) -> Mapping[str, Any]:
    statement = parse_object(payload, "the signed payload")
    if statement.get("_type") != STATEMENT_TYPE or not isinstance(statement.get("subject"), list):
        raise Rejected("the signed payload is not an in-toto statement")
    return statement
