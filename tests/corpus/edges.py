"""Cases at the edges of the documents, each with the outcome that docs/reference/bundle-format.md gives it.

Two verifiers written apart read some of these differently, until the documents decided them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from service.store.signing.statements import write_pem
from tests.bundles import POSTERIOR, SIGNER, key_list
from tests.corpus.cases import Case
from tests.corpus.drafts import KINDS, Draft, absence, certificate, receipt
from tests.lethe.verify.test_checkpoints import FIRST, SECOND

Edge = tuple[int, Case]
"""Expected exit code, and the case."""
VERIFIED, REJECTED, UNCONFIRMED = 0, 1, 3
PEM = SIGNER.public_pem.encode()
MAX_KEYS_BYTES, MAX_SEPARATORS = 1 << 20, 1 << 21


def edge_cases() -> Iterator[Edge]:
    yield from _pem_files()
    yield from _key_lists()
    yield from _names()
    yield from _dates()
    yield from _witnesses()
    yield from _unread_files()
    yield from _numbers()
    yield from _references()
    yield from _large_payloads()


def _pem_files() -> Iterator[Edge]:
    bundle = certificate().write()
    files = {
        "same key twice": (VERIFIED, PEM + PEM),
        "bytes around": (VERIFIED, b"\xff\xfe keys\n" + PEM.replace(b"-----END", b" \t-----END") + b"\xff"),
        "carriage returns": (VERIFIED, PEM.replace(b"\n", b"\r\n")),
        "no line feeds": (VERIFIED, PEM.replace(b"\n", b"")),
        "mark without end": (REJECTED, PEM + b"-----BEGIN PUBLIC KEY-----"),
        "other kind of space": (REJECTED, PEM.replace(b"\n", b"\x0b")),
        "no key": (REJECTED, b"-----END PUBLIC KEY-----"),
        "longer key": (REJECTED, PEM.replace(b"=\n", b"AA=\n")),
        "empty": (REJECTED, b""),
    }
    yield from ((code, Case(f"pem/{name}", bundle, content)) for name, (code, content) in files.items())


def _key_lists() -> Iterator[Edge]:
    bundle, pem = certificate().write(), write_pem(SIGNER.public_key)
    padding = b" " * (MAX_KEYS_BYTES - len(key_list()))
    lists = {
        "text after the block": (VERIFIED, key_list(statements={"public_key_pem": pem + "text"})),
        "text before the block": (REJECTED, key_list(statements={"public_key_pem": "text" + pem})),
        "two blocks": (REJECTED, key_list(statements={"public_key_pem": pem + write_pem(SIGNER.log_public_key)})),
        "byte order mark": (REJECTED, b"\xef\xbb\xbf" + key_list()),
        "spaces before": (VERIFIED, b" \r\n\t" + key_list()),
        "largest": (VERIFIED, key_list() + padding),
        "too large": (REJECTED, key_list() + padding + b" "),
        "no dates": (VERIFIED, key_list(statements={"retired_at": None, "revoked_at": None})),
        "no keyid": (REJECTED, key_list(statements={"keyid": None})),
        "no witnesses": (REJECTED, key_list(witnesses=None)),
        "no name": (REJECTED, key_list(origin=None)),
        "member of an object": (VERIFIED, key_list(__proto__={"origin": "elsewhere"})),
    }
    yield from ((code, Case(f"list/{name}", bundle, content)) for name, (code, content) in lists.items())


def _names() -> Iterator[Edge]:
    for kind, make in KINDS.items():
        bundle = make().write()
        yield REJECTED, Case(f"name/{kind}/empty with PEM", bundle, PEM, origin="")
        yield REJECTED, Case(f"name/{kind}/empty with list", bundle, key_list(), origin="")
        yield REJECTED, Case(f"name/{kind}/empty in list", bundle, key_list(origin=""))


def _dates() -> Iterator[Edge]:
    dates = {
        "0000-12-31T23:59:59-00:01": REJECTED,
        "0001-01-01T00:00:00-23:59": VERIFIED,
        "0099-12-31T23:59:59Z": VERIFIED,
        "1900-02-29T00:00:00Z": REJECTED,
        "1969-12-31T23:59:59.999999Z": VERIFIED,
        "2000-02-29T00:00:00Z": VERIFIED,
    }
    for date, code in dates.items():
        yield code, Case(f"date/{date}", certificate(received_at=date).write(), key_list())


def _witnesses() -> Iterator[Edge]:
    draft = certificate().change(note=FIRST.cosign)
    required = [FIRST.vkey]
    cosigned, unknown = draft.later(12, note=FIRST.cosign), draft.later(12, note=SECOND.cosign)
    yield VERIFIED, Case("witness/later by the required", draft.write(), key_list(), cosigned, witnesses=required)
    yield VERIFIED, Case("witness/later by nobody", draft.write(), key_list(), draft.later(12), witnesses=required)
    yield REJECTED, Case("witness/later by a stranger", draft.write(), key_list(), unknown, witnesses=required)
    yield VERIFIED, Case("witness/required twice", draft.write(), key_list(), witnesses=required * 2)
    yield REJECTED, Case("witness/malformed in list", draft.write(), key_list(witnesses=["x", *required]))


def _unread_files() -> Iterator[Edge]:
    """Without a place in the log, nothing about checkpoints is looked at."""
    for make in (receipt, absence):
        bundle = make().change(is_logged=False).write()
        yield UNCONFIRMED, Case("unread/later", bundle, key_list(), b"not JSON")
        yield UNCONFIRMED, Case("unread/witness", bundle, key_list(), witnesses=["not a key"])
        yield UNCONFIRMED, Case("unread/listed witness", bundle, key_list(witnesses=["not a key"]))
        yield REJECTED, Case("unread/posterior", bundle, key_list(), posterior=POSTERIOR)


def _numbers() -> Iterator[Edge]:
    numbers = {
        b"9007199254740991": VERIFIED,
        b"9007199254740991.4": VERIFIED,
        b"9007199254740992": REJECTED,
        b"0.99999999999999999999": VERIFIED,
        b"1e-400": VERIFIED,
        b"-0": VERIFIED,
        b"true": REJECTED,
    }
    for number, code in numbers.items():
        statement = absence().statement
        statement["predicate"]["models_in_store"] = "NUMBER"
        draft = absence().change(statement=statement, payload=lambda text, n=number: text.replace(b'"NUMBER"', n))
        yield code, Case(f"number/{number.decode()}", draft.write(), key_list())
    promise = receipt().statement
    promise["predicate"]["log"]["within_seconds"] = (1 << 53) - 1
    yield VERIFIED, Case("number/long promise", receipt().change(statement=promise).write(), key_list())


def _references() -> Iterator[Edge]:
    stored, posterior = {"reference_kind": "stored draws"}, {"reference_kind": "posterior"}
    allowed = {"reference": "stored draws"}
    members: dict[str, tuple[int, dict[str, object], dict[str, object]]] = {
        "stored draws, allowed": (VERIFIED, stored, allowed),
        "stored draws, not allowed": (REJECTED, stored, {"reference": "posterior"}),
        "stored draws, earlier policy": (REJECTED, stored, {}),
        "posterior, earlier policy": (VERIFIED, posterior, {}),
        "posterior, stored draws allowed": (VERIFIED, posterior, allowed),
        "not a sample set": (VERIFIED, {"reference_kind": None}, {"reference": "posterior"}),
        "not a sample set, policy not read": (VERIFIED, {"reference_kind": None}, {"reference": 7}),
        "unknown": (REJECTED, {"reference_kind": "prior"}, allowed),
        "unknown in the policy": (REJECTED, posterior, {"reference": "prior"}),
        "null in the policy": (REJECTED, posterior, {"reference": None}),
        "no text": (REJECTED, {"reference_kind": 0}, allowed),
    }
    for name, (code, bound, policy) in members.items():
        draft = KINDS["estimated"]()
        draft.statement["predicate"]["bound"].update(bound)
        draft.statement["predicate"]["policy"].update(policy)
        yield code, Case(f"reference/{name}", draft.write(), key_list())


def _large_payloads() -> Iterator[Edge]:
    most = MAX_SEPARATORS - _count_separators(_with_other(b'"OTHER"').signed)
    values = {
        "most items": (VERIFIED, b"[" + b"1," * (most - 1) + b"1]"),
        "too many items": (REJECTED, b"[" + b"1," * most + b"1]"),
        "escapes": (VERIFIED, b'"' + b"\\n" * 1_000_000 + b'"'),
        "string without end": (REJECTED, b'"' + b"\\n" * 1_000_000),
    }
    for name, (code, value) in values.items():
        yield code, Case(f"large/{name}", _with_other(value).write(), key_list())


def _with_other(value: bytes) -> Draft:
    """Return a certificate with a further member of this value."""
    statement = {**certificate().statement, "other": "OTHER"}
    return certificate().change(statement=statement, payload=lambda text: text.replace(b'"OTHER"', value))


def _count_separators(payload: bytes) -> int:
    """Count commas and opening brackets outside strings."""
    structure = re.sub(rb'"[^"]*"', b"", payload)
    return sum(structure.count(mark) for mark in (b",", b"[", b"{"))
