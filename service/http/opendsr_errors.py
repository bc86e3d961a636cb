"""Errors in OpenDSR's own format. Like problem+json, they never repeat what the caller sent."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

import structlog
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from service.http.errors import (
    RETRY_AFTER_SECONDS,
    BodyTooLarge,
    RoleForbidden,
    TokenLimited,
    TokenMissing,
    TooManyRequests,
    field_path,
)
from service.schemas.opendsr import ErrorAnswer, ErrorBody, ErrorDetail
from service.store.errors import IdempotencyMismatch, NotCancellable, NotFound, SecretMismatch

log = structlog.get_logger("opendsr")


class UnsupportedRequest(Exception):
    """A request that OpenDSR allows and this processor does not support."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


DATABASE_ERRORS = (OperationalError, InternalError, PoolTimeout)
ERRORS: dict[type[Exception], tuple[int, str]] = {
    UnsupportedRequest: (400, "unsupported"),
    ValidationError: (400, "invalid_request"),
    RequestValidationError: (400, "invalid_request"),
    IdempotencyMismatch: (400, "conflicting_request"),
    NotCancellable: (400, "not_pending"),
    TokenMissing: (401, "unauthorized"),
    RoleForbidden: (403, "forbidden"),
    TokenLimited: (403, "forbidden"),
    NotFound: (404, "not_found"),
    BodyTooLarge: (413, "too_large"),
    TooManyRequests: (429, "too_many_requests"),
    SecretMismatch: (503, "unavailable"),
    **dict.fromkeys(DATABASE_ERRORS, (503, "unavailable")),
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "Invalid, not supported, or no longer pending"},
    401: {"model": ErrorAnswer, "description": "Bearer token missing or invalid"},
    403: {"model": ErrorAnswer, "description": "Role not allowed, or outside the limits of the token"},
    404: {"model": ErrorAnswer, "description": "Request not found"},
    413: {"model": ErrorAnswer, "description": "Body too large"},
    429: {"model": ErrorAnswer, "description": "Too many requests; retry after `Retry-After` seconds"},
    503: {"model": ErrorAnswer, "description": "Database unavailable, or a process with a wrong secret; retry"},
}
"""For the OpenAPI document."""


def render_error(error: Exception, domain: str) -> Response:
    """Return the answer to an error of the table or to any HTTPException, in the name of the processor's domain."""
    status, reason = _status_and_reason(error)
    if isinstance(error, ValidationError | RequestValidationError):
        message = "the request does not follow the OpenDSR specification"
        details = [_describe(dict(item)) for item in error.errors()]
    else:
        message = _message(error)
        details = [message]
    errors = [ErrorDetail(domain=domain, reason=reason, message=detail) for detail in details]
    answer = ErrorAnswer(error=ErrorBody(code=status, message=message, errors=errors))
    content = answer.model_dump_json(exclude_none=True)
    return Response(content, status, _headers(error), media_type="application/json")


def _status_and_reason(error: Exception) -> tuple[int, str]:
    if isinstance(error, UnsupportedRequest):
        return 400, error.reason
    for kind in type(error).__mro__:
        if kind in ERRORS:
            return ERRORS[kind]
    status = cast(HTTPException, error).status_code
    return status, HTTPStatus(status).phrase.lower().replace(" ", "_")


def _message(error: Exception) -> str:
    if isinstance(error, DATABASE_ERRORS):
        log.error("database.unavailable")
        return "the database is unavailable; retry the request"
    return error.detail if isinstance(error, HTTPException) else str(error)


def _headers(error: Exception) -> Mapping[str, str]:
    if isinstance(error, DATABASE_ERRORS):
        return {"Retry-After": RETRY_AFTER_SECONDS}
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(error.seconds)}
    if isinstance(error, TokenMissing):
        return {"WWW-Authenticate": "Bearer"}
    return (error.headers if isinstance(error, HTTPException) else None) or {}


def _describe(item: dict[str, Any]) -> str:
    """Return field and reason of a validation error, without the input."""
    field = field_path(item)
    return f"{field}: {item['msg']}" if field else str(item["msg"])
