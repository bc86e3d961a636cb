from __future__ import annotations

import json
from typing import Any

import jsonschema

from docs.certificate_fields import documented_definitions
from vocabulary.certificate_schema import SCHEMA_FILE, certificate_schema, schema_text


def test_the_shipped_file_is_current() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run `python -m vocabulary.certificate_schema`"


def test_it_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(certificate_schema())


def test_every_member_is_described() -> None:
    definitions = certificate_schema()["$defs"]
    for name, definition in definitions.items():
        for member, schema in definition.get("properties", {}).items():
            assert "description" in schema or "$ref" in schema, (name, member)


def test_every_object_has_a_table_in_the_reference() -> None:
    objects = {name for name, definition in certificate_schema()["$defs"].items() if "properties" in definition}
    assert documented_definitions() == objects


def test_no_made_up_titles_and_no_defaults() -> None:
    assert not {"title", "default"} & set(_keys(certificate_schema()["$defs"]))


def test_what_is_always_written_is_required() -> None:
    definitions = certificate_schema()["$defs"]
    optional = {
        (name, member)
        for name, definition in definitions.items()
        for member in set(definition.get("properties", {})) - set(definition.get("required", []))
    }
    assert optional == {
        ("Bundle", "log"),
        ("ReceiptPredicate", "records"),
        ("AbsencePredicate", "records"),
        ("AbsencePredicate", "log"),
        ("AbsencePredicate", "models"),
        ("AbsencePredicate", "replaces"),
        ("CertificatePredicate", "erasure"),
        ("CertificatePredicate", "log"),
        ("CertificatePredicate", "replaces"),
        ("DestructionPredicate", "log"),
        ("DestructionPredicate", "replaces"),
        ("Bound", "elbo_distance"),
        ("Bound", "fresh_starts"),
        ("Bound", "reference_kind"),
        ("Policy", "reference"),
        ("Effects", "function_space"),
        ("KantorovichConstants", "coordinates"),
        ("KantorovichConstants", "excess"),
        ("ChainDiagnostics", "mean_gradient"),
        ("ChainDiagnostics", "mean_gradient_limit"),
        ("ChainDiagnostics", "virial"),
        ("ChainDiagnostics", "virial_limit"),
        ("ChainDiagnostics", "worst_parameter"),
        ("ChainDiagnostics", "undetectable"),
        ("SampleConstants", "chi_square"),
        ("SampleConstants", "reading"),
        ("SampleConstants", "undetectable"),
        ("SampleConstants", "s_r_hat"),
        ("SampleConstants", "s_ess"),
        ("SampleConstants", "panel_r_hat"),
        ("SampleConstants", "panel_ess"),
        ("SampleConstants", "independent_draws"),
        ("SampleConstants", "effective_parameters"),
        ("ChainDiagnostics", "functions"),
        ("NetworkConstants", "deviation"),
        ("NetworkConstants", "gradient_margin"),
        ("NetworkConstants", "linearised"),
        ("NetworkConstants", "reads"),
        ("NetworkConstants", "rounding"),
        ("NetworkConstants", "softer"),
        ("NetworkConstants", "standard_error"),
        ("NetworkConstants", "steps"),
    }


def test_the_schema_is_json() -> None:
    assert json.loads(schema_text()) == certificate_schema()


def _keys(value: Any) -> list[str]:
    if isinstance(value, list):
        return [key for item in value for key in _keys(item)]
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return []
