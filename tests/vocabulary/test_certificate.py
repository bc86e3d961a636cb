from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

import tests.lethe.verify
from tests.bundle_schema import check_bundle
from tests.bundles import certificate, predicate, signed_certificate
from vocabulary.certificate import (
    AbsenceStatement,
    Bundle,
    CertificatePredicate,
    CertificateStatement,
    DestroyedProof,
    ForgottenProof,
    ReceiptStatement,
    Statement,
    read_statement,
)

ISSUED_BEFORE = Path(tests.lethe.verify.__path__[0]) / "issued_before"


@pytest.mark.parametrize("path", sorted(ISSUED_BEFORE.glob("[acr]*.json")), ids=lambda path: path.stem)
def test_what_was_issued_before_is_read_and_written_byte_for_byte(path: Path) -> None:
    check_bundle(path.read_bytes())


def test_a_bundle_is_read_and_written_byte_for_byte() -> None:
    check_bundle(certificate())
    check_bundle(signed_certificate(predicate()))


def test_a_statement_is_read_by_its_predicate_type() -> None:
    payload = Bundle.model_validate_json(certificate()).envelope.decode_payload()
    statement = read_statement(payload)
    assert isinstance(statement, CertificateStatement)
    assert statement.predicate.records.forgotten_in_batch == 4
    other = json.loads(payload) | {"predicateType": "urn:lethe:promise:v9"}
    with pytest.raises(ValidationError, match="union_tag_invalid"):
        read_statement(json.dumps(other).encode())


@pytest.mark.parametrize("extra", [{"more": 1}, {"format": "lethe-bundle-v2"}])
def test_a_bundle_has_exactly_its_members(extra: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Bundle.model_validate({**json.loads(certificate()), **extra})


def test_a_payload_that_is_not_base64_is_refused() -> None:
    envelope = Bundle.model_validate_json(certificate()).envelope
    with pytest.raises(ValueError, match="base64"):
        envelope.model_copy(update={"payload": "!"}).decode_payload()


def test_a_data_set_of_an_earlier_version_is_its_digest() -> None:
    content = {**predicate(), "dataset": {"before": "0" * 64, "after": "1" * 64}}
    dataset = CertificatePredicate.model_validate(content).dataset
    assert dataset is not None
    assert (dataset.before.digest, dataset.before.root) == ("0" * 64, None)


@pytest.mark.parametrize("model", [Bundle, ForgottenProof, DestroyedProof, ReceiptStatement, AbsenceStatement])
def test_members_of_ordered_models_are_declared_in_the_order_of_their_names(model: type[BaseModel]) -> None:
    names = [field.alias or name for name, field in model.model_fields.items()]
    assert names == sorted(names)
    for field in model.model_fields.values():
        for part in _models_in(field.annotation):
            test_members_of_ordered_models_are_declared_in_the_order_of_their_names(part)


def test_there_are_four_kinds_of_statement() -> None:
    types = {get_args(kind.model_fields["predicateType"].annotation)[0] for kind in get_args(Statement)}
    kinds = ("receipt", "absence", "certificate", "destruction")
    assert types == {f"urn:lethe:{kind}:v1" for kind in kinds}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
