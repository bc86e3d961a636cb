"""Hooks for what the OpenAPI document cannot express. Loaded by schemathesis through schemathesis.toml."""

from __future__ import annotations

import json
import uuid
from typing import Any

import schemathesis
from hypothesis import strategies as st
from pydantic import TypeAdapter

from service.intake.bulk import MEDIA_TYPE, BulkAccepted, BulkRefused
from service.store.paging import EPOCH, Position

LINES: TypeAdapter[BulkAccepted | BulkRefused] = TypeAdapter(BulkAccepted | BulkRefused)

schemathesis.openapi.format(
    "cursor", st.builds(Position, st.datetimes(timezones=st.just(EPOCH.tzinfo)), st.uuids()).map(Position.encode)
)


@schemathesis.serializer(MEDIA_TYPE)
def serialize_lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """Serialize one line, which the schema describes. The example is text already."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.deserializer(MEDIA_TYPE)
def deserialize_lines(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> Any:
    """Validate every line; return the first for schemathesis to validate."""
    lines = response.content.splitlines()
    for line in lines:
        LINES.validate_json(line)
    return json.loads(lines[0])


@schemathesis.hook
def before_call(_: schemathesis.HookContext, case: schemathesis.Case, __: dict[str, Any]) -> None:
    """Give valid requests fresh keys and ids, since repeated ones are refused by design."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.headers and "idempotency-key" in case.headers:
        case.headers["idempotency-key"] = str(uuid.uuid4())
    if isinstance(case.body, dict) and "subject_request_id" in case.body:
        case.body["subject_request_id"] = str(uuid.uuid4())
