"""Many deletions in one request."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from service.intake.bulk import MEDIA_TYPE, BulkAccepted, BulkRefused, read_lines, write_lines
from service.intake.parsing import IdempotencyHeader
from service.intake.submission import Submission
from service.resources import Compliance, ResourcesDep
from service.routes.deletions import router as deletions_router
from service.store.deletions.idempotency import BULK
from service.store.deletions.requests import DeletionRequest

router = APIRouter(tags=["deletions"])
PATH = f"{deletions_router.prefix}/bulk"

EXAMPLE_LINES = (
    {"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]},
    {"regulation": "ccpa", "subjects": [{"identity_type": "controller_customer_id", "identity_value": "4711"}]},
)
REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "description": "One body of `POST /api/v1/deletions` per line.",
    "content": {
        MEDIA_TYPE: {
            # The schema of one line: OpenAPI 3.1 has no keyword for many.
            "schema": {"$ref": "#/components/schemas/DeletionCreate"},
            "example": "".join(f"{json.dumps(line)}\n" for line in EXAMPLE_LINES),
        }
    },
}
RESPONSE_DESCRIPTION = "One result per line sent, in the same order."


class NdjsonResponse(JSONResponse):
    """For the OpenAPI document: the schema describes one line."""

    media_type = MEDIA_TYPE


@router.post(
    PATH,
    response_class=NdjsonResponse,
    response_model=BulkAccepted | BulkRefused,
    response_description=RESPONSE_DESCRIPTION,
    openapi_extra={"requestBody": REQUEST_BODY},
    summary="Request many deletions",
)
async def create_deletions(
    request: Request, caller: Compliance, resources: ResourcesDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Up to 10,000 deletions as NDJSON, one per line. An invalid line does not affect the others.

    Each line has its own result: 201 with a receipt, or 422 or 404 with a problem that names the field and never
    repeats the value. All valid lines are stored in one transaction. With an `Idempotency-Key` for the whole request
    (same rules as for a single deletion), nothing is stored twice.
    """
    content = await request.body()
    parser = resources.parser(caller, request.state.request_id)
    lines = await run_in_threadpool(read_lines, content, parser.parse)
    await resources.limits.charge(caller.token_id, len(lines) - 1)  # the request itself has been counted
    requests = [line.content for line in lines if isinstance(line.content, DeletionRequest)]
    submission = Submission(
        requests,
        lambda outcomes: write_lines(lines, outcomes, resources.signer),
        parser.key_use(idempotency_key, BULK, requests),
    )
    return Response(await resources.intake.submit(submission), media_type=MEDIA_TYPE)
