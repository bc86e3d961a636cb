"""Field tables of the certificate reference, generated from the JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vocabulary.certificate_schema import certificate_schema

PAGE = Path(__file__).resolve().parent / "reference/certificate.md"
TABLE = re.compile(r"(<!-- fields of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def certificate_page() -> str:
    """Return the page with current tables. What stands between the tables is written by hand."""
    definitions = certificate_schema()["$defs"]
    return TABLE.sub(lambda match: f"{match[1]}{_table(match[2], definitions)}{match[3]}", PAGE.read_text())


def documented_definitions() -> set[str]:
    return {name for _, name, _ in TABLE.findall(PAGE.read_text())}


def _table(name: str, definitions: Mapping[str, Any]) -> str:
    definition = definitions[name]
    rows = ["| member | type | meaning |", "|---|---|---|"]
    for member, schema in definition["properties"].items():
        # pydantic leaves out a description that repeats the one of the referenced definition.
        meaning = schema.get("description") or definitions[schema["$ref"].rpartition("/")[2]]["description"]
        absent = "" if member in definition["required"] else " May be absent."
        rows.append(f"| `{member}` | {_type_name(schema)} | {meaning}{absent} |")
    return "\n".join([definition["description"], "", *rows, ""])


def _type_name(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "prefixItems" in schema:
        return "array of two numbers"
    if schema["type"] == "array":
        return f"array of {_type_name(schema['items'])}"
    if "pattern" in schema:
        return "SHA-256"
    names = {"date-time": "time", "uuid": "UUID"}
    return names.get(schema.get("format", ""), str(schema["type"]))
