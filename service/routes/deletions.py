"""Deletion requests: intake and status."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.resources import Compliance, DeletionReader, Resources, ResourcesDep, own_only
from service.schemas import DeletionCreate, DeletionOut, DeletionReceipt, deletion_out
from service.store import deletions, idempotency
from service.store.certificates import sign_receipt
from service.store.deletions import NewDeletion
from service.store.identities import Identity
from service.store.tokens import Caller

router = APIRouter(prefix="/api/v1/deletions", tags=["deletions"])

IdempotencyHeader = Annotated[
    str | None,
    Header(min_length=1, max_length=255, description="Send one: repeating the request then repeats the answer."),
]


@router.post("", status_code=201, response_model=DeletionReceipt, summary="Ask for a deletion")
def create_deletion(
    body: DeletionCreate,
    caller: Compliance,
    resources: ResourcesDep,
    request: Request,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """201 means durable: the request is committed and survives any crash. The receipt is signed."""
    try:
        receipt, fresh = _submit(resources, caller, body, request.state.request_id, idempotency_key)
    except IntegrityError:
        # The same key arrived twice at once and the other request won: now its answer is there to be repeated.
        receipt, fresh = _submit(resources, caller, body, request.state.request_id, idempotency_key)
    if fresh:
        for model in fresh.models:
            resources.doorbell.ring(model.model_id, resources.settings.batch_window_seconds)
    return Response(receipt, status_code=201, media_type="application/json")


@router.get("/{deletion_id}", response_model=DeletionOut, summary="How far a deletion is")
def read_deletion(deletion_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> DeletionOut:
    with resources.database.reading() as session:
        return deletion_out(deletions.find(session, deletion_id, own_only(caller)))


def _submit(
    resources: Resources, caller: Caller, body: DeletionCreate, request_id: str, key: str | None
) -> tuple[str, DeletionReceipt | None]:
    """One transaction. Returns the answer, and what was created if this is its first time."""
    body_mac = resources.hasher.mac(body.model_dump_json().encode())
    with resources.database.writing() as session:
        if key and (answer := idempotency.find_answer(session, caller.name, key, body_mac)):
            return answer, None
        receipt = _create(session, resources, caller, body, request_id)
        answer = receipt.model_dump_json()
        if key:
            idempotency.remember_answer(session, caller.name, key, body_mac, receipt.id, answer)
        return answer, receipt


def _create(
    session: Session, resources: Resources, caller: Caller, body: DeletionCreate, request_id: str
) -> DeletionReceipt:
    identities = [Identity(subject.identity_type, subject.identity_value) for subject in body.subjects]
    view = deletions.create(
        session,
        NewDeletion(
            caller=caller.name,
            regulation=body.regulation,
            lookups=list(dict.fromkeys(resources.hasher.lookup(identity) for identity in identities)),
            model_ids=body.models,
            request_id=request_id,
            window_seconds=resources.settings.batch_window_seconds,
        ),
    )
    receipt = sign_receipt(resources.signer, view.deletion, view.commitments)
    return DeletionReceipt(**deletion_out(view).model_dump(), receipt=receipt)
