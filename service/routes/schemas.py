"""JSON Schemas of what the service signs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from vocabulary.certificate_schema import SCHEMA_FILE

router = APIRouter(prefix="/api/v1/schemas", tags=["schemas"])

MEDIA_TYPE = "application/schema+json"
CACHE_CONTROL = "public, max-age=3600"
SCHEMA_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"description": "JSON Schema 2020-12.", "content": {MEDIA_TYPE: {"schema": {"type": "object"}}}}
}


@router.get("/certificate", summary="JSON Schema of bundles", response_class=Response, responses=SCHEMA_RESPONSE)
def certificate_schema() -> Response:
    """Receipts, certificates of absence and certificates. `#/$defs/Statement` describes the decoded payload. Public."""
    return Response(SCHEMA_FILE.read_bytes(), media_type=MEDIA_TYPE, headers={"Cache-Control": CACHE_CONTROL})
