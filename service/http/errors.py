"""All error statuses in one table. Answers are RFC 9457 problem+json and never repeat what the caller sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from service.store import errors as store
from service.store.database_errors import is_damaged, is_disk_full

log = structlog.get_logger("errors")

RETRY_AFTER_SECONDS = "5"
MAX_ERRORS = 100
"""Invalid fields that an answer names. A large body can have very many."""
# Answers are data: browsers must not guess their type, frame them, or send their URL as referrer.
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


class TokenLimited(Exception):
    pass


class ImportsDisabled(Exception):
    pass


class NotReady(Exception):
    pass


class BodyTooLarge(HTTPException):
    """An HTTPException, so that it passes through FastAPI's body parsing unchanged."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is larger than the limit of {limit} bytes")


class TooManyRequests(Exception):
    def __init__(self, seconds: int, reason: str = "this token has exceeded its rate limit") -> None:
        super().__init__(f"{reason}; retry in {seconds} s")
        self.seconds = seconds


class Row(NamedTuple):
    status: int
    slug: str
    title: str
    headers: dict[str, str] = {}  # noqa: RUF012


DATABASE_AWAY = Row(503, "database-away", "Database unavailable", {"Retry-After": RETRY_AFTER_SECONDS})
TABLE: dict[type[Exception], Row] = {
    TokenMissing: Row(401, "token-missing", "Bearer token missing or invalid", {"WWW-Authenticate": "Bearer"}),
    ImportsDisabled: Row(403, "imports-off", "Registration by location is disabled"),
    RoleForbidden: Row(403, "role-forbidden", "Role not allowed"),
    TokenLimited: Row(403, "token-limited", "Outside the limits of the token"),
    store.NotFound: Row(404, "not-found", "Not found"),
    store.KeyInFlight: Row(409, "key-in-flight", "Idempotency key in use", {"Retry-After": "1"}),
    store.NotCancellable: Row(409, "not-cancellable", "Deletion no longer cancellable"),
    store.NothingToRetry: Row(409, "nothing-to-retry", "Nothing to retry"),
    store.NotDrawable: Row(409, "not-drawable", "Draws not available"),
    store.NotReplaceable: Row(409, "not-replaceable", "Certificate not affected by a revoked key"),
    store.NotRefreshable: Row(409, "not-refreshable", "Model without chains"),
    store.NotResendable: Row(409, "not-resendable", "Callback not dead"),
    store.Gone: Row(410, "gone", "Destroyed"),
    store.ArtifactDamaged: Row(410, "damaged", "File damaged"),
    BodyTooLarge: Row(413, "too-large", "Body too large"),
    store.InvalidRegistration: Row(422, "invalid-registration", "Invalid registration"),
    store.InvalidPolicy: Row(422, "invalid-policy", "Invalid policy"),
    store.InvalidExtension: Row(422, "invalid-extension", "Invalid extension"),
    store.IdempotencyMismatch: Row(422, "idempotency-mismatch", "Idempotency key reused"),
    RequestValidationError: Row(422, "invalid-request", "Invalid request"),
    TooManyRequests: Row(429, "too-many-requests", "Rate limit exceeded"),
    store.ArtifactsUnavailable: Row(
        503, "artifacts-away", "Artifact store unavailable", {"Retry-After": RETRY_AFTER_SECONDS}
    ),
    store.CertificateRejected: Row(503, "certificate-rejected", "Certificate rejected by the verifier"),
    store.ClockBehind: Row(503, "clock-behind", "Database clock behind", {"Retry-After": RETRY_AFTER_SECONDS}),
    store.KeyInactive: Row(503, "key-inactive", "Signing key not active", {"Retry-After": RETRY_AFTER_SECONDS}),
    store.SecretMismatch: Row(503, "secret-mismatch", "Wrong secret", {"Retry-After": RETRY_AFTER_SECONDS}),
    NotReady: Row(503, "not-ready", "Not ready", {"Retry-After": RETRY_AFTER_SECONDS}),
    OperationalError: DATABASE_AWAY,
    InternalError: DATABASE_AWAY,  # among others, a session that the server has ended
    PoolTimeout: DATABASE_AWAY,  # no connection was free for half a minute
    DatabaseError: Row(503, "database-damaged", "Database damaged"),
    store.DiskFull: Row(507, "disk-full", "Disk full"),
}
BAD_REQUEST = Row(400, "bad-request", "Bad request")
ROUTING = {
    400: BAD_REQUEST,
    404: Row(404, "not-found", "Path not found"),
    405: Row(405, "method-not-allowed", "Method not allowed"),
    416: Row(416, "range-not-satisfiable", "Range starts beyond the end; see `Content-Range` for the size"),
    500: Row(500, "unexpected", "Internal error"),
}
ALL_ROWS = (*TABLE.values(), *ROUTING.values())


class Problem(JSONResponse):
    media_type = "application/problem+json"


class ProblemSchema(BaseModel):
    """Problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, str]] | None = Field(default=None, description="Invalid fields and why.")


def default_responses() -> dict[int | str, dict[str, Any]]:
    """Return the errors that any route may answer, for the OpenAPI document."""
    return error_responses(BAD_REQUEST.status, *(row.status for row in TABLE.values()))


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems with these statuses, each with an example, for the OpenAPI document."""
    return {status: _describe([row for row in ALL_ROWS if row.status == status]) for status in statuses}


def _describe(rows: Sequence[Row]) -> dict[str, Any]:
    titles = dict.fromkeys(f"{row.title} (`{row.slug}`)" for row in rows)
    examples = {row.slug: {"summary": row.title, "value": problem_body(row, row.title)} for row in rows}
    content = {"schema": ProblemSchema.model_json_schema(), "examples": examples}
    return {"description": "; ".join(titles), "content": {Problem.media_type: content}}


def catalogue() -> str:
    """Return all problems as a Markdown table, for the description of the API."""
    rows = {row.slug: row for row in reversed(ALL_ROWS)}.values()
    lines = [f"| {row.status} | `urn:lethe:problem:{row.slug}` | {row.title} |" for row in rows]
    return "\n".join(["| status | problem `type` | title |", "|---|---|---|", *sorted(lines)])


def problem_body(row: Row, detail: str, **members: Any) -> dict[str, Any]:
    body = {"type": f"urn:lethe:problem:{row.slug}", "title": row.title, "status": row.status, "detail": detail}
    return {**body, **members}


def problem(row: Row, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Problem:
    body = problem_body(row, detail, **members)
    return Problem(body, status_code=row.status, headers={**row.headers, **(headers or {})})


def install(app: FastAPI) -> None:
    for kind in TABLE:
        app.add_exception_handler(kind, render_error)


def render_error(request: Request, error: Exception) -> Problem:
    """Return the answer to an error of the table, or to a request that no route serves."""
    if isinstance(error, HTTPException) and not isinstance(error, BodyTooLarge):
        return _render_routing_error(error)
    row = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    if isinstance(error, RequestValidationError):
        return problem(
            row,
            "see `errors` for each field",
            errors=[{"field": field_path(item), "message": item["msg"]} for item in error.errors()[:MAX_ERRORS]],
        )
    if isinstance(error, store.InvalidRegistration):
        return problem(row, "see `errors`", errors=[{"field": error.field, "message": str(error)}])
    if isinstance(error, BodyTooLarge):
        return problem(row, error.detail)
    if isinstance(error, TooManyRequests):
        return problem(row, str(error), headers={"Retry-After": str(error.seconds)})
    if isinstance(error, DatabaseError | PoolTimeout):
        return _render_database_error(error)
    return problem(row, str(error))


def _render_database_error(error: DatabaseError | PoolTimeout) -> Problem:
    """Render an error whose cause is the database. Raises any other, such as a violated constraint: it is a bug."""
    cause = getattr(error, "orig", error)
    if is_disk_full(cause):
        return problem(TABLE[store.DiskFull], "nothing was stored; free disk space for the database")
    if is_damaged(cause):
        log.critical("database.damaged", error=type(cause).__name__)
        return problem(TABLE[DatabaseError], "nothing was stored; an operator has to restore the database")
    if not isinstance(error, OperationalError | InternalError | PoolTimeout):
        raise error
    log.error("database.unavailable", error=type(cause).__name__)
    return problem(DATABASE_AWAY, "nothing was stored; retry the request")


def _render_routing_error(error: HTTPException) -> Problem:
    row = ROUTING.get(error.status_code, BAD_REQUEST._replace(status=error.status_code))
    return problem(row, str(error.detail), headers=dict(error.headers or {}))


def report_crash(request: Request, error: Exception) -> HTTPException:
    """Log an unexpected error and return what the caller is told about it."""
    # Runs outside the middleware that binds the request id and sets headers, so both are added by hand.
    request_id: str = request.state.request_id
    log.error("request.crashed", request_id=request_id, exc_info=error)
    detail = f"the request may not have been stored; the log has the cause under request id {request_id}"
    return HTTPException(500, detail, {"X-Request-ID": request_id, **SECURITY_HEADERS})


def field_path(item: Mapping[str, Any]) -> str:
    """Return the field of a validation error. The name of an unknown field is input, so only its parent is named."""
    location = item["loc"][:-1] if item["type"] == "extra_forbidden" else item["loc"]
    return ".".join(str(part) for part in location)
