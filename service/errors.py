"""Every error status, in one table. Answers are RFC 9457 problem+json and never repeat what the caller sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from service.store import errors as store

log = structlog.get_logger("errors")

RETRY_AFTER_SECONDS = "5"


class TokenMissing(Exception):
    pass


class RoleForbidden(Exception):
    pass


class NotReady(Exception):
    pass


class BodyTooLarge(HTTPException):
    """An HTTPException so that it passes through FastAPI's body parsing unchanged."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is larger than the {limit} bytes allowed here")


class Row(NamedTuple):
    status: int
    slug: str
    title: str
    headers: dict[str, str] = {}  # noqa: RUF012


TABLE: dict[type[Exception], Row] = {
    TokenMissing: Row(401, "token-missing", "A valid bearer token is needed", {"WWW-Authenticate": "Bearer"}),
    RoleForbidden: Row(403, "role-forbidden", "This token's role may not do that"),
    store.NotFound: Row(404, "not-found", "There is no such thing"),
    store.NotCancellable: Row(409, "not-cancellable", "The deletion can no longer be cancelled"),
    store.NothingToRetry: Row(409, "nothing-to-retry", "No part of the deletion has failed"),
    store.Gone: Row(410, "gone", "It was destroyed"),
    BodyTooLarge: Row(413, "too-large", "The body is too large"),
    store.InvalidRegistration: Row(422, "invalid-registration", "The model cannot be registered"),
    store.InvalidExtension: Row(422, "invalid-extension", "The deadline cannot be moved there"),
    store.IdempotencyMismatch: Row(422, "idempotency-mismatch", "The idempotency key belongs to another request"),
    RequestValidationError: Row(422, "invalid-request", "The request is malformed"),
    NotReady: Row(503, "not-ready", "Not ready", {"Retry-After": RETRY_AFTER_SECONDS}),
    OperationalError: Row(503, "database-away", "The database is away", {"Retry-After": RETRY_AFTER_SECONDS}),
}
ROUTING = {
    404: Row(404, "not-found", "There is no such path"),
    405: Row(405, "method-not-allowed", "This path does not take that method"),
}
UNEXPECTED = Row(500, "unexpected", "Something went wrong here")


class Problem(JSONResponse):
    media_type = "application/problem+json"


class ProblemSchema(BaseModel):
    """RFC 9457, for the OpenAPI document."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, str]] | None = Field(default=None, description="Each field that is wrong, and why.")


def documented() -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: the answers that a route may give besides its own."""
    content = {Problem.media_type: {"schema": ProblemSchema.model_json_schema()}}
    return {row.status: {"description": row.title, "content": content} for row in TABLE.values()}


def problem(row: Row, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Problem:
    body = {"type": f"urn:lethe:problem:{row.slug}", "title": row.title, "status": row.status, "detail": detail}
    return Problem({**body, **members}, status_code=row.status, headers={**row.headers, **(headers or {})})


def install(app: FastAPI) -> None:
    for kind in TABLE:
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(Exception, _unexpected)


def _known(_: Request, error: Exception) -> Problem:
    row = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    if isinstance(error, RequestValidationError):
        return problem(
            row,
            "see `errors` for each field",
            errors=[{"field": field_path(item), "message": item["msg"]} for item in error.errors()],
        )
    if isinstance(error, store.InvalidRegistration):
        return problem(row, "see `errors`", errors=[{"field": error.field, "message": str(error)}])
    if isinstance(error, BodyTooLarge):
        return problem(row, error.detail)
    if isinstance(error, OperationalError):
        log.error("database.away", error=type(error.orig).__name__)
        return problem(row, "nothing was stored; send the request again")
    return problem(row, str(error))


def _routing(_: Request, raised: Exception) -> Problem:
    error = cast(HTTPException, raised)
    row = ROUTING.get(error.status_code, Row(error.status_code, "bad-request", "The request cannot be served"))
    return problem(row, str(error.detail), headers=dict(error.headers or {}))


def _unexpected(request: Request, error: Exception) -> Problem:
    # Runs outside the middleware that binds the request id, so it is put on by hand.
    request_id: str = request.state.request_id
    log.error("request.crashed", request_id=request_id, exc_info=error)
    detail = f"nothing is known to be stored; the log has the reason under request id {request_id}"
    return problem(UNEXPECTED, detail, headers={"X-Request-ID": request_id})


def field_path(item: Mapping[str, Any]) -> str:
    """Where a validation error is. An unknown field's own name is input, and left out like all input."""
    where = item["loc"][:-1] if item["type"] == "extra_forbidden" else item["loc"]
    return ".".join(str(part) for part in where)
