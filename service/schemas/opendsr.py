"""Schemas of OpenDSR: request body and answers. Unknown fields are ignored, as the specification demands."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from service.schemas.fields import CONVERTED, CallbackUrl, Timestamp, spelled

API_VERSION = "2.0"
IDENTITY_TYPES = (
    "controller_customer_id",
    "android_advertising_id",
    "android_id",
    "email",
    "fire_advertising_id",
    "ios_advertising_id",
    "ios_vendor_id",
    "microsoft_advertising_id",
    "microsoft_publisher_id",
    "roku_publisher_id",
    "roku_advertising_id",
)
SUPPORTED_FORMAT = "raw"
"""Models are registered with raw identities; a hash computed elsewhere cannot be compared with our keyed hash."""
SUPPORTED_REQUEST = "erasure"


VERSION_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, hide_input_in_errors=True)


class SubjectIdentity(_Lenient):
    identity_type: Literal[IDENTITY_TYPES]  # type: ignore[valid-type]
    identity_value: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    identity_format: Literal["raw", "sha1", "md5", "sha256"]


Identities = Annotated[list[SubjectIdentity], Field(min_length=1, max_length=100)]


class OwnExtension(_Lenient):
    """Content of `extensions` under this processor's domain, for platforms with a fixed list of identities."""

    subject_identities: Identities


class OpenDsrRequest(_Lenient):
    """Body of `POST /v2/requests`."""

    regulation: Literal["gdpr", "ccpa"]
    subject_request_id: Annotated[uuid.UUID, spelled(VERSION_4, "a UUID of version 4 in lower case"), CONVERTED] = (
        Field(json_schema_extra={"pattern": f"^{VERSION_4.pattern}$"})
    )
    subject_request_type: Literal["erasure", "portability", "access"]
    submitted_time: Timestamp
    subject_identities: Identities | None = None
    api_version: str | None = None
    status_callback_urls: Annotated[list[CallbackUrl], Field(max_length=10)] | None = None
    extensions: dict[str, Any] | None = Field(
        default=None,
        description="May hold `subject_identities` under this processor's domain instead of at the top level.",
    )


EXAMPLE = {
    "regulation": "gdpr",
    "subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798",
    "subject_request_type": SUPPORTED_REQUEST,
    "submitted_time": "2026-11-15T15:00:00Z",
    "subject_identities": [
        {"identity_type": "email", "identity_value": "ada@example.org", "identity_format": SUPPORTED_FORMAT}
    ],
    "status_callback_urls": ["https://platform.example/callback"],
    "api_version": API_VERSION,
}


def request_body() -> dict[str, Any]:
    """Return the body for the OpenAPI document. The route itself reads the raw bytes, to return and compare them."""
    schema = OpenDsrRequest.model_json_schema()
    identity = schema.pop("$defs")["SubjectIdentity"]
    # Only what this processor supports.
    identity["properties"]["identity_format"]["enum"] = [SUPPORTED_FORMAT]
    schema["properties"]["subject_request_type"]["enum"] = [SUPPORTED_REQUEST]
    schema["properties"]["subject_identities"] = {"type": "array", "items": identity, "minItems": 1, "maxItems": 100}
    schema["required"].append("subject_identities")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": EXAMPLE}}}}


class SupportedIdentity(BaseModel):
    identity_type: str
    identity_format: str


class Discovery(BaseModel):
    api_version: str
    supported_identities: list[SupportedIdentity]
    supported_subject_request_types: list[str]
    processor_certificate: str


class RequestAccepted(BaseModel):
    controller_id: str
    expected_completion_time: datetime
    received_time: datetime
    encoded_request: str
    subject_request_id: uuid.UUID


class RequestStatus(BaseModel):
    controller_id: str
    expected_completion_time: datetime
    subject_request_id: uuid.UUID
    request_status: Literal["pending", "in_progress", "completed", "cancelled"]
    api_version: str = API_VERSION
    results_url: str | None = None
    results_count: int | None = None


class RequestCancelled(BaseModel):
    controller_id: str
    received_time: datetime
    subject_request_id: uuid.UUID
    api_version: str = API_VERSION


class ErrorDetail(BaseModel):
    domain: str
    reason: str
    message: str


class ErrorBody(BaseModel):
    code: int
    message: str
    errors: list[ErrorDetail]


class ErrorAnswer(BaseModel):
    error: ErrorBody
