"""JSON Schema of bundles and of the statements inside them.

`python -m vocabulary.certificate_schema` writes `certificate.schema.json` beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from vocabulary.bound import EarlierConstants
from vocabulary.certificate import (
    AbsenceStatement,
    Bundle,
    CertificateStatement,
    DestructionStatement,
    ReceiptStatement,
)

SCHEMA_FILE = Path(__file__).with_name("certificate.schema.json")
SCHEMA_ID = "urn:lethe:schema:certificate:v1"
STATEMENTS = (CertificateStatement, DestructionStatement, AbsenceStatement, ReceiptStatement)


def certificate_schema() -> dict[str, Any]:
    """Return the schema of a bundle (JSON Schema 2020-12). `#/$defs/Statement` is that of its decoded payload."""
    models = [(model, "serialization") for model in (Bundle, *STATEMENTS)]
    _, generated = models_json_schema(models, by_alias=True, ref_template="#/$defs/{model}")  # type: ignore[arg-type]
    definitions = _plain(generated["$defs"])
    del definitions[EarlierConstants.__name__]  # read, but never issued
    definitions["Statement"] = {"oneOf": [{"$ref": f"#/$defs/{model.__name__}"} for model in STATEMENTS]}
    definitions["Envelope"]["properties"]["payload"]["contentSchema"] = {"$ref": "#/$defs/Statement"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Lethe bundle",
        "$ref": "#/$defs/Bundle",
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the schema as it stands in the file."""
    return json.dumps(certificate_schema(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _plain(value: Any) -> Any:
    """Drop titles, which pydantic makes up, and defaults, which are for reading earlier statements only."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _plain(item) for key, item in value.items() if key not in {"title", "default"}}


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text())
