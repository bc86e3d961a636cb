"""Deletion requests: creation, list, status, and the changes people may make."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.http.deletion_csv import deletions_csv
from service.http.exports import Export, record_export, while_valid
from service.http.strict_json import StrictRoute
from service.intake.parsing import IdempotencyHeader
from service.intake.submission import single_submission
from service.resources import Compliance, DeletionReader, Operator, ResourcesDep, require_role, visible_owner
from service.routes.callbacks import receiver
from service.routes.deletion_events import RESPONSES as EVENT_RESPONSES
from service.routes.deletion_events import read_events
from service.schemas.deletions import (
    DeletionCreate,
    DeletionFilters,
    DeletionHistory,
    DeletionOut,
    DeletionPage,
    DeletionQuery,
    DeletionReceipt,
    DeletionSelection,
    ExtensionIn,
    RetriedOut,
    deletion_out,
    page_out,
    receipt_out,
)
from service.store.access.tokens import Caller
from service.store.certificates.statements import sign_receipt
from service.store.deletions import interventions, listing
from service.store.deletions.idempotency import DELETION
from service.store.deletions.views import DeletionView, find_view
from service.store.states import Role

router = APIRouter(prefix="/api/v1/deletions", tags=["deletions"], route_class=StrictRoute)

DeletionEditor = Annotated[Caller, Depends(require_role(Role.COMPLIANCE, Role.OPERATOR))]
CSV: dict[int | str, dict[str, Any]] = {
    200: {"description": "A header and one row per deletion.", "content": {"text/csv": {}}}
}


@router.post(
    "",
    status_code=201,
    response_model=DeletionReceipt,
    summary="Request a deletion",
    callbacks=receiver.routes,
)
async def create_deletion(
    body: DeletionCreate,
    caller: Compliance,
    resources: ResourcesDep,
    request: Request,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """201 means durable: the request is committed and survives any crash. The receipt is signed.

    Until `binding_at` it can be cancelled, and the answer is the same whoever is named: `models` is empty.

    With an `Idempotency-Key` the same request always gets the same answer, byte for byte; another body under that key
    is 422. While the first request is being processed, a second one waits for it a few seconds and then gets 409 with
    `Retry-After`: retry it.
    """

    def write_receipt(view: DeletionView) -> str:
        return receipt_out(view, sign_receipt(resources.signer, view)).model_dump_json()

    parser = resources.parser(caller, request.state.request_id, idempotency_key)
    deletion_request = parser.parse(body)
    key = parser.key_use(idempotency_key, DELETION, [deletion_request])
    submission = single_submission(deletion_request, write_receipt, key)
    return Response(await resources.intake.submit(submission), status_code=201, media_type="application/json")


@router.get("", response_model=DeletionPage, summary="List deletions")
def list_deletions(
    query: Annotated[DeletionQuery, Query()], caller: DeletionReader, resources: ResourcesDep
) -> DeletionPage:
    """Newest first, one page at a time. Compliance sees its own deletions; operators and auditors see all."""
    criteria = query.criteria(visible_owner(caller), query.status)
    with resources.database.reading() as session:
        return page_out(listing.find_page(session, criteria, query.window))


@router.get(".csv", response_class=StreamingResponse, responses=CSV, summary="Export deletions as CSV")
def export_deletions(
    query: Annotated[DeletionSelection, Query()], caller: DeletionReader, resources: ResourcesDep
) -> StreamingResponse:
    """Stream all matches, newest first. Text that a spreadsheet would evaluate is prefixed with an apostrophe."""
    criteria = query.criteria(visible_owner(caller), query.status)
    record_export(resources.database, caller, "deletions", asdict(criteria))
    rows = while_valid(resources.database, caller, deletions_csv(resources.database, criteria))
    headers = {"Content-Disposition": 'attachment; filename="lethe-deletions.csv"'}
    return Export(rows, media_type="text/csv; charset=utf-8", headers=headers)


@router.post("/retry", response_model=RetriedOut, summary="Retry failed deletions by filter")
def retry_deletions(
    query: Annotated[DeletionFilters, Query()], caller: Operator, resources: ResourcesDep
) -> RetriedOut:
    """Takes the filters of the list. Retries the failed matches, oldest first, at most 10,000 at once."""
    with resources.database.writing() as session:
        retried = interventions.retry_matching(session, query.criteria(caller=None), caller.name)
    resources.ringer.ring(retried.model_ids)
    return RetriedOut(retried=retried.deletions)


@router.get("/{deletion_id}", response_model=DeletionOut, summary="Read a deletion")
def read_deletion(deletion_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> DeletionOut:
    """Status, deadline, progress in each model, and what happens next."""
    with resources.database.reading() as session:
        return deletion_out(find_view(session, deletion_id, visible_owner(caller)))


router.add_api_route(
    "/{deletion_id}/events",
    read_events,
    response_model=DeletionHistory,
    responses=EVENT_RESPONSES,
    summary="Read the history of a deletion",
)


@router.delete("/{deletion_id}", response_model=DeletionOut, summary="Cancel a deletion")
def cancel_deletion(deletion_id: uuid.UUID, caller: DeletionEditor, resources: ResourcesDep) -> DeletionOut:
    """Its caller can until `binding_at`, an operator while it is pending or failed. A running one goes on."""
    with resources.database.writing() as session:
        return deletion_out(interventions.cancel(session, deletion_id, visible_owner(caller), caller.name))


@router.post("/{deletion_id}/retry", response_model=DeletionOut, summary="Retry a failed deletion")
def retry_deletion(deletion_id: uuid.UUID, caller: DeletionEditor, resources: ResourcesDep) -> DeletionOut:
    """Models in which it failed start again with all attempts; the reasons of failure stay in the history."""
    with resources.database.writing() as session:
        view, model_ids = interventions.retry(session, deletion_id, visible_owner(caller), caller.name)
        answer = deletion_out(view)
    resources.ringer.ring(model_ids)
    return answer


@router.post("/{deletion_id}/extension", response_model=DeletionOut, summary="Extend the deadline of a deletion")
def extend_deletion(
    deletion_id: uuid.UUID, body: ExtensionIn, caller: Operator, resources: ResourcesDep
) -> DeletionOut:
    """At most to three months after receipt (gdpr) or 90 days (ccpa)."""
    with resources.database.writing() as session:
        return deletion_out(interventions.extend(session, deletion_id, body.until, body.reason, caller.name))
