"""OpenDSR 2.0: the contract that compliance platforms already speak. Erasure only; answers are signed.

Version 1 called it OpenGDPR: `/v1/opengdpr_requests` and `X-OpenGDPR-*` headers are aliases. So is `/v2/status/{id}` of
`/v2/requests/{id}`, since the specification uses both.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import IntegrityError, OperationalError

from service.errors import RETRY_AFTER_SECONDS, BodyTooLarge, RoleForbidden, TokenMissing, field_path
from service.opendsr_schemas import (
    API_VERSION,
    IDENTITY_TYPES,
    REQUEST_STATUS,
    SUPPORTED_FORMAT,
    SUPPORTED_REQUEST,
    Discovery,
    ErrorAnswer,
    ErrorBody,
    ErrorDetail,
    OpenDsrRequest,
    RequestAccepted,
    RequestCancelled,
    RequestStatus,
    SupportedIdentity,
)
from service.resources import Compliance, Resources, ResourcesDep, resources_of
from service.store import interventions, opendsr
from service.store.deletions import DeletionView, NewDeletion
from service.store.errors import IdempotencyMismatch, NotCancellable, NotFound
from service.store.identities import Identity
from service.store.opendsr import Submission
from service.store.tables import DeletionStatus
from service.store.tokens import Caller

log = structlog.get_logger("opendsr")


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
router = APIRouter(
    tags=["opendsr"], route_class=SignedRoute, responses={400: {"model": ErrorAnswer}, 404: {"model": ErrorAnswer}}
)


@public.get("/discovery", summary="What this processor supports")
def discovery(request: Request) -> Discovery:
    return Discovery(
        api_version=API_VERSION,
        supported_identities=[
            SupportedIdentity(identity_type=name, identity_format=SUPPORTED_FORMAT) for name in IDENTITY_TYPES
        ],
        supported_subject_request_types=[SUPPORTED_REQUEST],
        processor_certificate=str(request.url_for("processor_certificate")),
    )


@public.get(
    "/certificate.pem", summary="The certificate that answers are signed with", response_class=PlainTextResponse
)
def processor_certificate(resources: ResourcesDep) -> PlainTextResponse:
    return PlainTextResponse(resources.processor.certificate_pem, media_type="application/x-pem-file")


@router.post("/v2/requests", status_code=201, response_model=RequestAccepted, summary="Ask for an erasure")
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
    body = _understood(raw)
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
    )
    mac = resources.hasher.mac(raw)
    submission = Submission(body.subject_request_id, mac, tuple(body.status_callback_urls or ()), new)
    with resources.database.writing() as session:
        return opendsr.submit(session, submission, resources.signer)


def _understood(raw: bytes) -> OpenDsrRequest:
    body = OpenDsrRequest.model_validate_json(raw)
    if body.subject_request_type != SUPPORTED_REQUEST:
        raise Refused("unsupported_request_type", "this processor supports erasure only, as /v2/discovery says")
    if body.subject_identities is None:
        raise Refused("no_identity", "subject_identities is missing, and identities in extensions are not supported")
    if any(one.identity_format != SUPPORTED_FORMAT for one in body.subject_identities):
        raise Refused("unsupported_identity_format", "send identities in the format raw, as /v2/discovery says")
    return body


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
    OperationalError: (503, "unavailable"),
}


def _refusal(request: Request, error: Exception) -> Response:
    status, reason = next(_REFUSALS[kind] for kind in type(error).__mro__ if kind in _REFUSALS)
    domain = resources_of(request).processor.domain
    if isinstance(error, ValidationError | RequestValidationError):
        items = error.errors()
        details = [ErrorDetail(domain=domain, reason=reason, message=_told(dict(item))) for item in items]
        message = "the request does not follow the OpenDSR specification"
    else:
        message = "the database is away; send the request again" if status == 503 else str(error)
        told = error.reason if isinstance(error, Refused) else reason
        details = [ErrorDetail(domain=domain, reason=told, message=message)]
    if status == 503:
        log.error("database.away")
    answer = _json(status, ErrorAnswer(error=ErrorBody(code=status, message=message, errors=details)))
    if status == 503:
        answer.headers["Retry-After"] = RETRY_AFTER_SECONDS
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


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
