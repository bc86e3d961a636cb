"""Many deletions in one request."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from service.intake.bulk import MEDIA_TYPE, BulkAccepted, BulkRefused, read_lines, write_lines
from service.intake.parsing import IdempotencyHeader, key_use, new_deletion
from service.resources import Compliance, ResourcesDep
from service.routes.deletions import router as deletions_router
from service.schemas.deletions import DeletionCreate
from service.store.deletions.creation import NewDeletion

router = APIRouter(tags=["deletions"])
PATH = f"{deletions_router.prefix}/bulk"

EXAMPLE_LINES = (
    {"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]},
    {"regulation": "ccpa", "subjects": [{"identity_type": "controller_customer_id", "identity_value": "4711"}]},
)
SENT: dict[str, Any] = {
    "required": True,
    "description": "On each line the body of `POST /api/v1/deletions`.",
    "content": {
        MEDIA_TYPE: {
            # Of a line: no keyword of OpenAPI 3.1 says that there are many.
            "schema": {"$ref": "#/components/schemas/DeletionCreate"},
            "example": "".join(f"{json.dumps(line)}\n" for line in EXAMPLE_LINES),
        }
    },
}
ANSWERED = "On each line what became of the line that was sent, in the same order."


class Lines(JSONResponse):
    """For the OpenAPI document: the schema is that of a line."""

    media_type = MEDIA_TYPE


@router.post(
    PATH,
    response_class=Lines,
    response_model=BulkAccepted | BulkRefused,
    response_description=ANSWERED,
    openapi_extra={"requestBody": SENT},
    summary="Ask for many deletions",
)
async def create_deletions(
    request: Request, caller: Compliance, resources: ResourcesDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Up to 10,000 deletions as NDJSON, one a line. One bad line does not sink the others.

    Each line gets an answer of its own: 201 with its receipt, or 422 or 404 with a problem that names the field and
    never repeats the value. All good lines are stored in one transaction, so that with an `Idempotency-Key` (one for
    the whole request, with the same rules as for a single deletion) nothing is ever stored twice.
    """
    content = await request.body()

    def understand(body: DeletionCreate) -> NewDeletion:
        window_seconds = resources.settings.batch_window_seconds
        return new_deletion(body, caller, resources.hasher, window_seconds, request.state.request_id)

    lines = await run_in_threadpool(read_lines, content, understand)
    news = [line.asked for line in lines if isinstance(line.asked, NewDeletion)]
    use = key_use(resources.hasher, caller, idempotency_key, content)
    answer = await resources.intake.submit_bulk(
        news, use, lambda outcomes: write_lines(lines, outcomes, resources.signer)
    )
    return Response(answer, media_type=MEDIA_TYPE)
