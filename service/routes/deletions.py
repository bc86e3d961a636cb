"""Deletion requests: intake, list, status, and what people may change of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.http.deletion_csv import deletions_csv
from service.http.exports import note_export
from service.intake.parsing import IdempotencyHeader, key_use, new_deletion, same_every_time
from service.intake.submission import Asked
from service.resources import Compliance, DeletionReader, Resources, ResourcesDep, allowed, own_only
from service.routes.callbacks import announced
from service.routes.deletion_events import STREAMED, read_events
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
)
from service.store.access.tokens import Caller
from service.store.deletions import interventions, listing
from service.store.deletions import lifecycle as deletions
from service.store.states import Role

router = APIRouter(prefix="/api/v1/deletions", tags=["deletions"])

DeletionKeeper = Annotated[Caller, Depends(allowed(Role.COMPLIANCE, Role.OPERATOR))]
Operator = Annotated[Caller, Depends(allowed(Role.OPERATOR))]
CSV: dict[int | str, dict[str, Any]] = {
    200: {"description": "A header and one row for each deletion.", "content": {"text/csv": {}}}
}


@router.post(
    "",
    status_code=201,
    response_model=DeletionReceipt,
    summary="Ask for a deletion",
    callbacks=announced.routes,
)
async def create_deletion(
    body: DeletionCreate,
    caller: Compliance,
    resources: ResourcesDep,
    request: Request,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """201 means durable: the request is committed and survives any crash. The receipt is signed.

    With an `Idempotency-Key` the same request gets the same answer, byte for byte and for ever; another body under that
    key is 422. While the first request is still being answered a second one waits for it, a few seconds at most, and
    then gets 409 with `Retry-After`: send it again.
    """
    window_seconds = resources.settings.batch_window_seconds
    new = new_deletion(body, caller, resources.hasher, window_seconds, request.state.request_id)
    asked = Asked(new, key_use(resources.hasher, caller, idempotency_key, same_every_time(body)))
    return Response(await resources.intake.submit(asked), status_code=201, media_type="application/json")


@router.get("", response_model=DeletionPage, summary="List deletions")
def list_deletions(
    query: Annotated[DeletionQuery, Query()], caller: DeletionReader, resources: ResourcesDep
) -> DeletionPage:
    """Newest first, a page at a time. Compliance sees its own; operators and auditors see all."""
    criteria = query.criteria(own_only(caller), query.status)
    with resources.database.reading() as session:
        return page_out(listing.find_page(session, criteria, query.window))


@router.get(".csv", response_class=StreamingResponse, responses=CSV, summary="Deletions as CSV")
def export_deletions(
    query: Annotated[DeletionSelection, Query()], caller: DeletionReader, resources: ResourcesDep
) -> StreamingResponse:
    """All that match, newest first, as a stream. Text that a spreadsheet would compute begins with an apostrophe."""
    criteria = query.criteria(own_only(caller), query.status)
    note_export(resources.database, caller, "deletions", asdict(criteria))
    rows = deletions_csv(resources.database, criteria)
    headers = {"Content-Disposition": 'attachment; filename="lethe-deletions.csv"'}
    return StreamingResponse(rows, media_type="text/csv; charset=utf-8", headers=headers)


@router.post("/retry", response_model=RetriedOut, summary="Retry all failed deletions that match")
def retry_deletions(
    query: Annotated[DeletionFilters, Query()], caller: Operator, resources: ResourcesDep
) -> RetriedOut:
    """The same filters as the list, for failed deletions only; the oldest first, at most 10,000 at once."""
    with resources.database.writing() as session:
        retried = interventions.retry_matching(session, query.criteria(caller=None), caller.name)
    _ring(resources, retried.model_ids)
    return RetriedOut(retried=retried.deletions)


@router.get("/{deletion_id}", response_model=DeletionOut, summary="How far a deletion is")
def read_deletion(deletion_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> DeletionOut:
    """Its state, its deadline, the progress in each model, and what happens next."""
    with resources.database.reading() as session:
        return deletion_out(deletions.find(session, deletion_id, own_only(caller)))


router.add_api_route(
    "/{deletion_id}/events",
    read_events,
    response_model=DeletionHistory,
    responses=STREAMED,
    summary="What happened to a deletion",
)


@router.delete("/{deletion_id}", response_model=DeletionOut, summary="Cancel a deletion")
def cancel_deletion(deletion_id: uuid.UUID, caller: DeletionKeeper, resources: ResourcesDep) -> DeletionOut:
    """Only while it is pending: what a worker has begun is finished."""
    with resources.database.writing() as session:
        return deletion_out(interventions.cancel(session, deletion_id, own_only(caller), caller.name))


@router.post("/{deletion_id}/retry", response_model=DeletionOut, summary="Retry a failed deletion")
def retry_deletion(deletion_id: uuid.UUID, caller: DeletionKeeper, resources: ResourcesDep) -> DeletionOut:
    """The models in which it failed start again with a full set of attempts; why they failed stays in the history."""
    with resources.database.writing() as session:
        view, model_ids = interventions.retry(session, deletion_id, own_only(caller), caller.name)
        answer = deletion_out(view)
    _ring(resources, model_ids)
    return answer


@router.post("/{deletion_id}/extension", response_model=DeletionOut, summary="Extend the deadline of a deletion")
def extend_deletion(
    deletion_id: uuid.UUID, body: ExtensionIn, caller: Operator, resources: ResourcesDep
) -> DeletionOut:
    """As far as the regulation allows: three months from receipt in all (gdpr), or 90 days (ccpa)."""
    with resources.database.writing() as session:
        return deletion_out(interventions.extend(session, deletion_id, body.until, body.reason, caller.name))


def _ring(resources: Resources, model_ids: Iterable[uuid.UUID]) -> None:
    for model_id in model_ids:
        resources.doorbell.ring(model_id)
