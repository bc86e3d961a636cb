"""OpenDSR 2.0: the contract that compliance platforms already speak. Erasure only; answers are signed.

Version 1 called it OpenGDPR: `/v1/opengdpr_requests` and `X-OpenGDPR-*` headers are aliases. So is `/v2/status/{id}` of
`/v2/requests/{id}`, since the specification uses both.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import IntegrityError, OperationalError
from starlette.exceptions import HTTPException

from service.http.errors import (
    RETRY_AFTER_SECONDS,
    BodyTooLarge,
    RoleForbidden,
    TokenMissing,
    TooManyRequests,
    field_path,
)
from service.resources import Compliance, Resources, ResourcesDep, resources_of
from service.schemas.opendsr import (
    API_VERSION,
    IDENTITY_TYPES,
    SUPPORTED_FORMAT,
    SUPPORTED_REQUEST,
    Discovery,
    ErrorAnswer,
    ErrorBody,
    ErrorDetail,
    OpenDsrRequest,
    OwnExtension,
    RequestAccepted,
    RequestCancelled,
    RequestStatus,
    SubjectIdentity,
    SupportedIdentity,
    request_body,
)
from service.store.access.identities import Identity
from service.store.access.tokens import Caller
from service.store.deletions import interventions, opendsr
from service.store.deletions.creation import NewDeletion
from service.store.deletions.lifecycle import DeletionView
from service.store.deletions.opendsr import Submission
from service.store.deletions.opendsr_status import REQUEST_STATUS
from service.store.errors import IdempotencyMismatch, NotCancellable, NotFound
from service.store.states import DeletionStatus

log = structlog.get_logger("opendsr")
PREFIXES = ("/v2/", "/v1/")
"""Under which every answer has OpenDSR's shape."""


class Refused(Exception):
    """A request that the contract does not allow, or that we do not support. Holds nothing that the caller sent."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SignedRoute(APIRoute):
    """Turns every refusal into OpenDSR's own shape, and signs every answer over its raw bytes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await serve(request)
            except tuple(_REFUSALS) as error:
                response = _refusal(request, error)
            return _signed(request, response)

        return answer


public = APIRouter(prefix="/v2", tags=["opendsr"])
v1 = APIRouter(prefix="/v1")
REFUSED: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "Against the specification, not supported, or no longer pending"},
    401: {"model": ErrorAnswer, "description": "A valid bearer token is needed"},
    403: {"model": ErrorAnswer, "description": "This token's role may not do that"},
    404: {"model": ErrorAnswer, "description": "There is no such request of this caller"},
    413: {"model": ErrorAnswer, "description": "The body is too large"},
    429: {"model": ErrorAnswer, "description": "Too many requests; `Retry-After` says when to go on"},
    503: {"model": ErrorAnswer, "description": "The database is away; send the request again"},
}
router = APIRouter(tags=["opendsr"], route_class=SignedRoute, responses=REFUSED)


@public.get("/discovery", summary="What this processor supports")
@v1.get("/discovery", include_in_schema=False)
def discovery(request: Request) -> Discovery:
    """Erasure, by raw identities of eleven types; and where to find the certificate that answers are signed with."""
    return Discovery(
        api_version=API_VERSION,
        supported_identities=[
            SupportedIdentity(identity_type=name, identity_format=SUPPORTED_FORMAT) for name in IDENTITY_TYPES
        ],
        supported_subject_request_types=[SUPPORTED_REQUEST],
        processor_certificate=str(request.url_for("processor_certificate")),
    )


class Pem(PlainTextResponse):
    media_type = "application/x-pem-file"


@public.get("/certificate.pem", summary="The certificate that answers are signed with", response_class=Pem)
def processor_certificate(resources: ResourcesDep) -> Pem:
    """X.509 in PEM. Signatures are RSA, PKCS#1 v1.5 with SHA-256, over the raw bytes of an answer or a callback."""
    return Pem(resources.processor.certificate_pem)


@router.post(
    "/v2/requests",
    status_code=201,
    response_model=RequestAccepted,
    summary="Ask for an erasure",
    openapi_extra=request_body(),
)
@router.post("/v1/opengdpr_requests", status_code=201, response_model=RequestAccepted, include_in_schema=False)
async def create_request(request: Request, caller: Compliance, resources: ResourcesDep) -> Response:
    """201 means durable. The same body again gets the same answer; `encoded_request` is returned and never stored."""
    raw = await request.body()
    return await run_in_threadpool(_create, resources, caller, raw, request.state.request_id)


@router.get("/v2/requests/{subject_request_id}", response_model=RequestStatus, summary="How far a request is")
@router.get("/v2/status/{subject_request_id}", response_model=RequestStatus, include_in_schema=False)
@router.get("/v1/opengdpr_requests/{subject_request_id}", response_model=RequestStatus, include_in_schema=False)
def read_request(
    subject_request_id: uuid.UUID, request: Request, caller: Compliance, resources: ResourcesDep
) -> Response:
    """Pending, in progress, completed or cancelled; when it will be done, and where the certificates are.

    A removal that failed stays in progress until somebody retries it: the protocol knows no failure.
    """
    with resources.database.reading() as session:
        view = opendsr.find_deletion(session, subject_request_id, caller.name)
        return _json(200, _status(request, subject_request_id, view))


@router.delete(
    "/v2/requests/{subject_request_id}", status_code=202, response_model=RequestCancelled, summary="Take a request back"
)
@router.delete(
    "/v1/opengdpr_requests/{subject_request_id}",
    status_code=202,
    response_model=RequestCancelled,
    include_in_schema=False,
)
def cancel_request(subject_request_id: uuid.UUID, caller: Compliance, resources: ResourcesDep) -> Response:
    """Only while it is pending."""
    with resources.database.writing() as session:
        found = opendsr.find_deletion(session, subject_request_id, caller.name)
        view = interventions.cancel(session, found.deletion.id, caller.name, caller.name)
        return _json(
            202,
            RequestCancelled(
                controller_id=view.deletion.caller,
                received_time=view.deletion.received_at,
                subject_request_id=subject_request_id,
            ),
        )


def _create(resources: Resources, caller: Caller, raw: bytes, request_id: str) -> Response:
    body = _understood(raw, resources.settings.processor_domain)
    try:
        view, fresh = _submit(resources, caller, body, raw, request_id)
    except IntegrityError:
        # The same request arrived twice at once and the other one won: now its deletion is there to be found.
        view, fresh = _submit(resources, caller, body, raw, request_id)
    if fresh:
        for target in view.targets:
            resources.doorbell.ring(target.model_id, resources.settings.batch_window_seconds)
    return _json(
        201,
        RequestAccepted(
            controller_id=caller.name,
            expected_completion_time=view.deletion.due_at,
            received_time=view.deletion.received_at,
            encoded_request=base64.b64encode(raw).decode(),
            subject_request_id=body.subject_request_id,
        ),
    )


def _submit(
    resources: Resources, caller: Caller, body: OpenDsrRequest, raw: bytes, request_id: str
) -> tuple[DeletionView, bool]:
    identities = [Identity(one.identity_type, one.identity_value) for one in body.subject_identities or []]
    new = NewDeletion(
        caller=caller.name,
        regulation=body.regulation,
        lookups=list(dict.fromkeys(resources.hasher.lookup(identity) for identity in identities)),
        model_ids=None,
        request_id=request_id,
        window_seconds=resources.settings.batch_window_seconds,
        callback_urls=body.status_callback_urls or (),
    )
    submission = Submission(body.subject_request_id, resources.hasher.mac(raw), new)
    with resources.database.writing() as session:
        return opendsr.submit(session, submission, resources.signer)


def _understood(raw: bytes, domain: str) -> OpenDsrRequest:
    body = OpenDsrRequest.model_validate_json(raw)
    if body.subject_request_type != SUPPORTED_REQUEST:
        raise Refused("unsupported_request_type", "this processor supports erasure only, as /v2/discovery says")
    identities = body.subject_identities or _identities_in_extensions(body, domain)
    if any(one.identity_format != SUPPORTED_FORMAT for one in identities):
        raise Refused("unsupported_identity_format", "send identities in the format raw, as /v2/discovery says")
    return body.model_copy(update={"subject_identities": identities})


def _identities_in_extensions(body: OpenDsrRequest, domain: str) -> Sequence[SubjectIdentity]:
    own = (body.extensions or {}).get(domain)
    if not own:
        raise Refused("no_identity", f"send subject_identities, or the same list below {domain} in extensions")
    return OwnExtension.model_validate(own).subject_identities


def _status(request: Request, subject_request_id: uuid.UUID, view: DeletionView) -> RequestStatus:
    certificates = [target.certificate_id for target in view.targets if target.certificate_id is not None]
    url = str(request.url_for("read_deletion", deletion_id=str(view.deletion.id))) if certificates else None
    return RequestStatus(
        controller_id=view.deletion.caller,
        expected_completion_time=view.deletion.due_at,
        subject_request_id=subject_request_id,
        request_status=REQUEST_STATUS[DeletionStatus(view.deletion.status)],
        results_url=url,
        results_count=len(certificates) if certificates else None,
    )


def _json(status: int, model: BaseModel) -> Response:
    return Response(model.model_dump_json(exclude_none=True), status_code=status, media_type="application/json")


_REFUSALS: dict[type[Exception], tuple[int, str]] = {
    Refused: (400, "unsupported"),
    ValidationError: (400, "invalid_request"),
    RequestValidationError: (400, "invalid_request"),
    IdempotencyMismatch: (400, "conflicting_request"),
    NotCancellable: (400, "not_pending"),
    TokenMissing: (401, "unauthorized"),
    RoleForbidden: (403, "forbidden"),
    NotFound: (404, "not_found"),
    BodyTooLarge: (413, "too_large"),
    TooManyRequests: (429, "too_many_requests"),
    OperationalError: (503, "unavailable"),
}


def refused(request: Request, error: Exception) -> Response:
    """For what is refused before a route is found, or because there is none."""
    return _signed(request, _refusal(request, error))


def _refusal(request: Request, error: Exception) -> Response:
    status, reason = _named(error)
    if isinstance(error, ValidationError | RequestValidationError):
        message = "the request does not follow the OpenDSR specification"
        told = [_told(dict(item)) for item in error.errors()]
    else:
        message = _message(error)
        told = [message]
    domain = resources_of(request).processor.domain
    details = [ErrorDetail(domain=domain, reason=reason, message=one) for one in told]
    answer = _json(status, ErrorAnswer(error=ErrorBody(code=status, message=message, errors=details)))
    answer.headers.update(_headers(error))
    return answer


def _named(error: Exception) -> tuple[int, str]:
    if isinstance(error, Refused):
        return 400, error.reason
    for kind in type(error).__mro__:
        if kind in _REFUSALS:
            return _REFUSALS[kind]
    status = cast(HTTPException, error).status_code
    return status, HTTPStatus(status).phrase.lower().replace(" ", "_")


def _message(error: Exception) -> str:
    if isinstance(error, OperationalError):
        log.error("database.away")
        return "the database is away; send the request again"
    return error.detail if isinstance(error, HTTPException) else str(error)


def _headers(error: Exception) -> Mapping[str, str]:
    if isinstance(error, OperationalError):
        return {"Retry-After": RETRY_AFTER_SECONDS}
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(error.seconds)}
    if isinstance(error, TokenMissing):
        return {"WWW-Authenticate": "Bearer"}
    return (error.headers if isinstance(error, HTTPException) else None) or {}


def _told(item: dict[str, Any]) -> str:
    """Where and why, without what was sent."""
    where = field_path(item)
    return f"{where}: {item['msg']}" if where else str(item["msg"])


def _signed(request: Request, response: Response) -> Response:
    processor = resources_of(request).processor
    name = "OpenGDPR" if request.url.path.startswith("/v1/") else "OpenDSR"
    response.headers[f"X-{name}-Processor-Domain"] = processor.domain
    response.headers[f"X-{name}-Signature"] = processor.sign(bytes(response.body))
    response.headers["Cache-Control"] = "no-store"
    return response
