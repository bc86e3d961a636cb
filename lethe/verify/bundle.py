"""A bundle from the file to the last check."""

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
LARGEST_BUNDLE = 64 << 20


@dataclass(frozen=True)
class Verified:
    """What was checked, in order, and what the file says."""

    kind: str
    checks: tuple[str, ...]
    predicate: Mapping[str, Any]
    content: bytes

    @property
    def not_proved(self) -> list[str]:
        return [*self.predicate.get("bound", {}).get("not_proved", []), *self.predicate.get("not_proved", [])]

    def facts(self) -> dict[str, Any]:
        """For machines."""
        told = {"kind": self.kind, "checks": self.checks, "not_proved": self.not_proved, "predicate": self.predicate}
        return {"verified": True, **told}


def verify(
    content: bytes,
    keys: bytes,
    posterior: bytes | None = None,
    later: bytes | None = None,
    witnesses: Sequence[str] = (),
) -> Verified:
    """Check a bundle; raises Rejected.

    `keys` is the list of keys that Lethe publishes (JSON), or one or more public keys (PEM). `posterior` is the model
    file that the certificate speaks of. `later` is a proof that a later checkpoint still has all that the bundle's had,
    as `/api/v1/log/proof/consistency` gives it. `witnesses` are the keys of those who must have cosigned it.
    """
    ring = load_keys(keys)
    bundle = _open_bundle(content)
    key, payload = _check_signature(object_at(bundle, "envelope"), ring)
    statement = _open_statement(payload)
    kind = KINDS.get(text_at(statement, "predicateType"))
    if kind is None:
        raise Rejected("the statement is of a kind this verifier does not know; use a newer one")
    predicate = object_at(statement, "predicate")
    checks = [
        "the file is a Lethe bundle, unchanged to the byte",
        f"the signature is by key {key.key_id}{key.trusted_at(time_at(predicate, kind.signed_at))}",
        f"the signed statement is a {kind.name}",
        *kind.check(statement, predicate),
        *check_log(bundle, kind, predicate, payload, ring, witnesses, later),
    ]
    if posterior is not None:
        checks.append(check_posterior(statement, posterior))
    return Verified(kind.name, tuple(checks), predicate, content)


def _open_bundle(content: bytes) -> Mapping[str, Any]:
    if len(content) > LARGEST_BUNDLE:
        raise Rejected("the file is too large to be a bundle")
    bundle = parse_object(content, "the file")
    canonical = json.dumps(bundle, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if canonical.encode(errors="replace") != content:  # what is no text is changed by that
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
    named = signatures[0].get("keyid")
    if set(signatures[0]) != {"keyid", "sig"} or not isinstance(named, str) or named not in ring.keys:
        raise Rejected(f"the bundle was not signed by a key at hand ({', '.join(ring.keys)}); fetch the key it names")
    payload, key = decode_base64(text_at(envelope, "payload"), "payload"), ring.keys[named]
    signature = decode_base64(text_at(signatures[0], "sig"), "signature")
    if not is_signed(key.public, signature, pre_authentication(PAYLOAD_TYPE, payload)):
        raise Rejected("the signature does not fit the content: one of them was changed")
    return key, payload


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """What DSSE signs: the type and the payload with their lengths."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(payload), payload)


def _open_statement(payload: bytes) -> Mapping[str, Any]:
    statement = parse_object(payload, "the signed payload")
    if statement.get("_type") != STATEMENT_TYPE or not isinstance(statement.get("subject"), list):
        raise Rejected("the signed payload is not an in-toto statement")
    return statement
