"""What goes over the wire under /v2: OpenDSR's request body and its answers. Unknown fields are ignored, as it asks."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from service.store.tables import DeletionStatus

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
"""Models are registered under raw identities; a hash made elsewhere cannot be compared with our keyed one."""
SUPPORTED_REQUEST = "erasure"


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class SubjectIdentity(_Lenient):
    identity_type: Literal[IDENTITY_TYPES]  # type: ignore[valid-type]
    identity_value: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    identity_format: Literal["raw", "sha1", "md5", "sha256"]


class OpenDsrRequest(_Lenient):
    """The body of `POST /v2/requests`."""

    regulation: Literal["gdpr", "ccpa"]
    subject_request_id: uuid.UUID
    subject_request_type: Literal["erasure", "portability", "access"]
    submitted_time: AwareDatetime
    subject_identities: Annotated[list[SubjectIdentity], Field(min_length=1, max_length=100)] | None = None
    api_version: str | None = None
    status_callback_urls: Annotated[list[str], Field(max_length=10)] | None = None
    extensions: dict[str, Any] | None = None


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


REQUEST_STATUS: dict[DeletionStatus, Literal["pending", "in_progress", "completed", "cancelled"]] = {
    DeletionStatus.PENDING: "pending",
    DeletionStatus.RUNNING: "in_progress",
    DeletionStatus.COMPLETED: "completed",
    DeletionStatus.CANCELLED: "cancelled",
    # The protocol knows no failure: it stays in progress until an operator or a retry ends it.
    DeletionStatus.FAILED: "in_progress",
}
