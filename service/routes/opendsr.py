"""OpenDSR 2.0, the contract that compliance platforms speak. Erasure only; every answer is signed.

Version 1 was called OpenGDPR: `/v1/opengdpr_requests` and `X-OpenGDPR-*` headers are aliases. `/v2/status/{id}` is an
alias of `/v2/requests/{id}`, since the specification uses both.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service.http.opendsr_errors import ERRORS, RESPONSES, render_error
from service.intake.opendsr import native_body, read_opendsr
from service.intake.submission import single_submission
from service.resources import Compliance, ResourcesDep, resources_of
from service.schemas.opendsr import (
    API_VERSION,
    IDENTITY_TYPES,
    SUPPORTED_FORMAT,
    SUPPORTED_REQUEST,
    Discovery,
    RequestAccepted,
    RequestCancelled,
    RequestStatus,
    SupportedIdentity,
    request_body,
)
from service.store.deletions import interventions, opendsr
from service.store.deletions.opendsr import REQUEST_STATUS
from service.store.deletions.requests import OpenDsrReference
from service.store.deletions.views import DeletionView
from service.store.states import DeletionStatus

PREFIXES = ("/v2/", "/v1/")
"""Paths whose answers all have OpenDSR's format."""


class SignedRoute(APIRoute):
    """Route whose errors have OpenDSR's format and whose answers are signed over their raw bytes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except tuple(ERRORS) as error:
                return await run_in_threadpool(refuse, request, error)
            return await run_in_threadpool(_sign, request, response)

        return answer


public = APIRouter(prefix="/v2", tags=["opendsr"])
v1 = APIRouter(prefix="/v1")
router = APIRouter(tags=["opendsr"], route_class=SignedRoute, responses=RESPONSES)


@public.get("/discovery", summary="Supported requests and identities")
@v1.get("/discovery", include_in_schema=False)
def discovery(request: Request) -> Discovery:
    """Erasure by raw identities of eleven types, and the URL of the certificate that answers are signed with."""
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


@public.get("/certificate.pem", summary="Certificate of the signing key", response_class=Pem)
def processor_certificate(resources: ResourcesDep) -> Pem:
    """X.509 in PEM. Signatures are RSA, PKCS#1 v1.5 with SHA-256, over the raw bytes of an answer or a callback."""
    return Pem(resources.processor.certificate_pem)


@router.post(
    "/v2/requests",
    status_code=201,
    response_model=RequestAccepted,
    summary="Request an erasure",
    openapi_extra=request_body(),
)
@router.post("/v1/opengdpr_requests", status_code=201, response_model=RequestAccepted, include_in_schema=False)
async def create_request(request: Request, caller: Compliance, resources: ResourcesDep) -> Response:
    """201 means durable. The same body again gets the same answer; `encoded_request` is returned and never stored."""
    raw = await request.body()
    parser = resources.parser(caller, request.state.request_id)
    body = await run_in_threadpool(read_opendsr, raw, resources.settings.processor_domain)
    reference = OpenDsrReference(caller.name, body.subject_request_id, resources.hasher.mac)
    deletion_request = parser.parse(native_body(body), reference)
    submission = single_submission(deletion_request, lambda view: _accepted(view, raw, body.subject_request_id))
    return Response(await resources.intake.submit(submission), 201, media_type="application/json")


@router.get("/v2/requests/{subject_request_id}", response_model=RequestStatus, summary="Read the status of a request")
@router.get("/v2/status/{subject_request_id}", response_model=RequestStatus, include_in_schema=False)
@router.get("/v1/opengdpr_requests/{subject_request_id}", response_model=RequestStatus, include_in_schema=False)
def read_request(
    subject_request_id: uuid.UUID, request: Request, caller: Compliance, resources: ResourcesDep
) -> Response:
    """Pending, in progress, completed or cancelled; the expected time of completion and the URL of the certificates.

    A failed deletion stays in progress until it is retried: OpenDSR has no status for failures.
    """
    with resources.database.reading() as session:
        view = opendsr.find_request(session, subject_request_id, caller.name)
        return _json(200, _status(request, subject_request_id, view))


@router.delete(
    "/v2/requests/{subject_request_id}", status_code=202, response_model=RequestCancelled, summary="Cancel a request"
)
@router.delete(
    "/v1/opengdpr_requests/{subject_request_id}",
    status_code=202,
    response_model=RequestCancelled,
    include_in_schema=False,
)
def cancel_request(subject_request_id: uuid.UUID, caller: Compliance, resources: ResourcesDep) -> Response:
    """Possible until the batch window ends. Then the request is binding."""
    with resources.database.writing() as session:
        deletion = opendsr.find_request(session, subject_request_id, caller.name).deletion
        view = interventions.cancel(session, deletion.id, caller.name, caller.name)
        return _json(
            202,
            RequestCancelled(
                controller_id=view.deletion.caller,
                received_time=view.deletion.received_at,
                subject_request_id=subject_request_id,
            ),
        )


def _accepted(view: DeletionView, raw: bytes, subject_request_id: uuid.UUID) -> str:
    return RequestAccepted(
        controller_id=view.deletion.caller,
        expected_completion_time=view.deletion.due_at,
        received_time=view.deletion.received_at,
        encoded_request=base64.b64encode(raw).decode(),
        subject_request_id=subject_request_id,
    ).model_dump_json(exclude_none=True)


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


def refuse(request: Request, error: Exception) -> Response:
    """Return the signed answer to an error, also to one raised before routing."""
    return _sign(request, render_error(error, resources_of(request).processor.domain))


def _sign(request: Request, response: Response) -> Response:
    processor = resources_of(request).processor
    name = "OpenGDPR" if request.url.path.startswith("/v1/") else "OpenDSR"
    response.headers[f"X-{name}-Processor-Domain"] = processor.domain
    response.headers[f"X-{name}-Signature"] = processor.sign(bytes(response.body))
    response.headers["Cache-Control"] = "no-store"
    return response
