"""Many deletions in one request."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.http.large_response import LargeResponse
from service.intake.bulk import (
    LINES_PER_SLICE,
    MEDIA_TYPE,
    BulkAccepted,
    BulkRefused,
    Line,
    make_submissions,
    read_lines,
    split_lines,
)
from service.intake.parsing import IdempotencyHeader
from service.resources import Compliance, ResourcesDep
from service.routes.deletions import router as deletions_router

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
    repeats the value. Every valid line is stored before the answer, in transactions of up to 200 lines. If the database
    fails in between, the lines that were not stored say so with 503 or 507. With an `Idempotency-Key` for the whole
    request (same rules as for a single deletion) nothing is stored twice, and a request that is repeated after a crash
    continues where the first one stopped.
    """
    run = resources.background.run
    numbered = await run(split_lines, await request.body())
    await resources.limits.charge(caller.token_id, len(numbered) - 1)  # the request itself has been counted
    parser = resources.parser(caller, request.state.request_id, idempotency_key)
    lines: list[Line] = []
    for start in range(0, len(numbered), LINES_PER_SLICE):
        lines += await run(read_lines, numbered[start : start + LINES_PER_SLICE], parser.parse)
    submissions = await run(make_submissions, lines, parser, idempotency_key, resources.signer)
    answer = await resources.intake.submit(*submissions)
    return LargeResponse(await run(answer.encode), media_type=MEDIA_TYPE)
