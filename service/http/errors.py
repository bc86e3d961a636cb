"""Every error status, in one table. Answers are RFC 9457 problem+json and never repeat what the caller sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from service.store import errors as store
from service.store.dialect import is_disk_full

log = structlog.get_logger("errors")

RETRY_AFTER_SECONDS = "5"
# Answers are data: no browser shall guess their type, frame them, or tell others where it read them.
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class TokenMissing(Exception):
    pass


class RoleForbidden(Exception):
    pass


class ImportsOff(Exception):
    pass


class NotReady(Exception):
    pass


class BodyTooLarge(HTTPException):
    """An HTTPException so that it passes through FastAPI's body parsing unchanged."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is larger than the {limit} bytes allowed here")


class TooManyRequests(Exception):
    def __init__(self, seconds: int) -> None:
        super().__init__(f"this token has sent more than it may; send the request again in {seconds} s")
        self.seconds = seconds


class Row(NamedTuple):
    status: int
    slug: str
    title: str
    headers: dict[str, str] = {}  # noqa: RUF012


TABLE: dict[type[Exception], Row] = {
    TokenMissing: Row(401, "token-missing", "A valid bearer token is needed", {"WWW-Authenticate": "Bearer"}),
    ImportsOff: Row(403, "imports-off", "Models cannot be registered by location here"),
    RoleForbidden: Row(403, "role-forbidden", "This token's role may not do that"),
    store.NotFound: Row(404, "not-found", "There is no such thing"),
    store.KeyInFlight: Row(409, "key-in-flight", "A request with this key is being answered", {"Retry-After": "1"}),
    store.NotCancellable: Row(409, "not-cancellable", "The deletion can no longer be cancelled"),
    store.NothingToRetry: Row(409, "nothing-to-retry", "No part of the deletion has failed"),
    store.NotResendable: Row(409, "not-resendable", "The callback was not given up"),
    store.Gone: Row(410, "gone", "It was destroyed"),
    BodyTooLarge: Row(413, "too-large", "The body is too large"),
    store.InvalidRegistration: Row(422, "invalid-registration", "The model cannot be registered"),
    store.InvalidPolicy: Row(422, "invalid-policy", "The policy does not fit the model"),
    store.InvalidExtension: Row(422, "invalid-extension", "The deadline cannot be moved there"),
    store.IdempotencyMismatch: Row(422, "idempotency-mismatch", "The idempotency key belongs to another request"),
    RequestValidationError: Row(422, "invalid-request", "The request is malformed"),
    TooManyRequests: Row(429, "too-many-requests", "This token sends too much"),
    store.ArtifactsAway: Row(503, "artifacts-away", "Artifacts are away", {"Retry-After": RETRY_AFTER_SECONDS}),
    NotReady: Row(503, "not-ready", "Not ready", {"Retry-After": RETRY_AFTER_SECONDS}),
    OperationalError: Row(503, "database-away", "The database is away", {"Retry-After": RETRY_AFTER_SECONDS}),
    store.DiskFull: Row(507, "disk-full", "The disk is full"),
}
UNREADABLE = Row(400, "bad-request", "The request cannot be read")
ROUTING = {
    400: UNREADABLE,
    404: Row(404, "not-found", "There is no such path"),
    405: Row(405, "method-not-allowed", "This path does not take that method"),
    416: Row(416, "range-not-satisfiable", "The range begins behind the end; `Content-Range` tells the size"),
    500: Row(500, "unexpected", "Something went wrong here"),
}
EVERY_ROW = (*TABLE.values(), *ROUTING.values())


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
    """For the OpenAPI document: the answers that any route may give besides its own."""
    return answers(UNREADABLE.status, *(row.status for row in TABLE.values()))


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: each problem that comes with these statuses, by name and with an example."""
    return {status: _answer([row for row in EVERY_ROW if row.status == status]) for status in statuses}


def _answer(rows: Sequence[Row]) -> dict[str, Any]:
    titles = dict.fromkeys(f"{row.title} (`{row.slug}`)" for row in rows)
    examples = {row.slug: {"summary": row.title, "value": problem_body(row, row.title)} for row in rows}
    content = {"schema": ProblemSchema.model_json_schema(), "examples": examples}
    return {"description": "; ".join(titles), "content": {Problem.media_type: content}}


def catalogue() -> str:
    """Every problem in a table of Markdown, for the front of the OpenAPI document."""
    rows = {row.slug: row for row in reversed(EVERY_ROW)}.values()
    lines = [f"| {row.status} | `urn:lethe:problem:{row.slug}` | {row.title} |" for row in rows]
    return "\n".join(["| status | `type` of the problem | |", "|---|---|---|", *sorted(lines)])


def problem_body(row: Row, detail: str, **members: Any) -> dict[str, Any]:
    body = {"type": f"urn:lethe:problem:{row.slug}", "title": row.title, "status": row.status, "detail": detail}
    return {**body, **members}


def problem(row: Row, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Problem:
    body = problem_body(row, detail, **members)
    return Problem(body, status_code=row.status, headers={**row.headers, **(headers or {})})


def install(app: FastAPI) -> None:
    for kind in TABLE:
        app.add_exception_handler(kind, refused)


def refused(request: Request, error: Exception) -> Problem:
    """The answer to an error of the table, or to a request that leads nowhere."""
    if isinstance(error, HTTPException) and not isinstance(error, BodyTooLarge):
        return _routing(request, error)
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
    if isinstance(error, TooManyRequests):
        return problem(row, str(error), headers={"Retry-After": str(error.seconds)})
    if isinstance(error, OperationalError):
        if is_disk_full(error.orig):
            return problem(TABLE[store.DiskFull], "the database has no room left and nothing was stored; make some")
        log.error("database.away", error=type(error.orig).__name__)
        return problem(row, "nothing was stored; send the request again")
    return problem(row, str(error))


def _routing(_: Request, error: HTTPException) -> Problem:
    row = ROUTING.get(error.status_code, UNREADABLE._replace(status=error.status_code))
    return problem(row, str(error.detail), headers=dict(error.headers or {}))


def crashed(request: Request, error: Exception) -> HTTPException:
    """What to tell of an error that nobody foresaw; the log has the rest."""
    # Runs outside the middleware that binds the request id and sets headers, so both are put on by hand.
    request_id: str = request.state.request_id
    log.error("request.crashed", request_id=request_id, exc_info=error)
    detail = f"nothing is known to be stored; the log has the reason under request id {request_id}"
    return HTTPException(500, detail, {"X-Request-ID": request_id, **SECURITY_HEADERS})


def field_path(item: Mapping[str, Any]) -> str:
    """Where a validation error is. An unknown field's own name is input, and left out like all input."""
    where = item["loc"][:-1] if item["type"] == "extra_forbidden" else item["loc"]
    return ".".join(str(part) for part in where)
