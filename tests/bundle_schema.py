"""Checks that every bundle which the tests make fits the published schema and the typed models, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import rfc8785

import lethe.verify.bundle
from lethe.verify import Verified
from service.store.canonical_json import canonical_json
from vocabulary.bound import EarlierConstants
from vocabulary.certificate import Bundle, CertificateStatement, read_statement
from vocabulary.certificate_schema import SCHEMA_FILE


def check_bundle(content: str | bytes) -> None:
    """Fail unless a bundle fits the schema, and bundle and payload survive reading and writing unchanged."""
    content = content.encode() if isinstance(content, str) else content
    bundle = Bundle.model_validate_json(content)
    _validator("Bundle").validate(json.loads(content))
    assert bundle.to_canonical_json() == content == rfc8785.dumps(json.loads(content))
    payload = bundle.envelope.decode_payload()
    statement = read_statement(payload)
    _validator("Statement").validate(json.loads(payload))
    assert canonical_json(statement.to_dict()) == payload == rfc8785.dumps(statement.to_dict())
    if isinstance(statement, CertificateStatement):
        assert not isinstance(statement.predicate.bound.constants, EarlierConstants)


@contextmanager
def checking_every_verified_bundle() -> Iterator[None]:
    """Apply `check_bundle` to each bundle that the verifier accepts in this process."""
    original = lethe.verify.bundle.Verified

    @dataclass(frozen=True)
    class Checked(original):  # type: ignore[misc, valid-type]
        def __post_init__(self) -> None:
            check_bundle(self.content)

    lethe.verify.bundle.Verified = Checked  # type: ignore[misc]
    try:
        yield
    finally:
        lethe.verify.bundle.Verified = original  # type: ignore[misc]


@contextmanager
def accepting_other_content() -> Iterator[None]:
    """Let the verifier accept bundles with signed content that Lethe never signs."""
    checked = lethe.verify.bundle.Verified
    lethe.verify.bundle.Verified = Verified  # type: ignore[misc]
    try:
        yield
    finally:
        lethe.verify.bundle.Verified = checked  # type: ignore[misc]


@cache
def _validator(definition: str) -> Any:
    schema = json.loads(SCHEMA_FILE.read_text())
    schema["$ref"] = f"#/$defs/{definition}"
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
