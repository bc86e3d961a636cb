"""Bulk requests as NDJSON: one deletion per line, one answer per line. Errors never repeat the input."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from service.http.errors import TABLE, ProblemSchema, field_path, problem_body
from service.http.strict_json import read_json
from service.schemas.deletions import DeletionCreate
from service.store.certificates.statements import sign_receipt
from service.store.deletions.creation import Outcome
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView
from service.store.errors import NotFound
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus

MEDIA_TYPE = "application/x-ndjson"
MAX_LINES = 10_000


class BulkAccepted(BaseModel):
    """A line that became a deletion."""

    line: int = Field(description="Line number from 1; empty lines count.", examples=[1])
    status: Literal[201]
    id: uuid.UUID
    deletion_status: DeletionStatus
    subjects: list[str] = Field(description="Keyed commitments that stand for the subjects in log and certificates.")
    due_at: datetime
    models: list[uuid.UUID] = Field(description="Models that hold what the line names.")
    absence: str | None = Field(description="Path of the certificate that no model held the subject.")
    receipt: str = Field(description="Signed bundle for `lethe verify`.")


class BulkRefused(BaseModel):
    """A line that was refused: nothing of it was stored."""

    line: int
    status: Literal[404, 422]
    problem: ProblemSchema


@dataclass(frozen=True)
class Line:
    number: int
    content: DeletionRequest | ValidationError


def read_lines(content: bytes, parse: Callable[[DeletionCreate], DeletionRequest]) -> Sequence[Line]:
    numbered = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if not 0 < len(numbered) <= MAX_LINES:
        message = f"send 1 to {MAX_LINES} deletions, each as JSON on its own line"
        raise RequestValidationError([{"type": "lines", "loc": ("body",), "msg": message}])
    return [Line(number, _read_line(line, parse)) for number, line in numbered]


def write_lines(lines: Sequence[Line], outcomes: Sequence[Outcome], signer: StatementSigner) -> str:
    """Return one line for each, in order. `outcomes` are those of the lines that could be parsed."""
    remaining = iter(outcomes)
    results = (line.content if isinstance(line.content, ValidationError) else next(remaining) for line in lines)
    return "".join(f"{_write_line(line.number, result, signer)}\n" for line, result in zip(lines, results, strict=True))


def _read_line(line: bytes, parse: Callable[[DeletionCreate], DeletionRequest]) -> DeletionRequest | ValidationError:
    try:
        return parse(DeletionCreate.model_validate(read_json(line)))
    except ValidationError as error:
        return error


def _write_line(number: int, result: Outcome | ValidationError, signer: StatementSigner) -> str:
    if isinstance(result, DeletionView):
        return _accepted(number, result, signer).model_dump_json()
    if isinstance(result, ValidationError):
        errors = [{"field": field_path(item), "message": item["msg"]} for item in result.errors(include_input=False)]
        body = problem_body(TABLE[RequestValidationError], "see `errors` for each field", errors=errors)
        return BulkRefused(line=number, status=422, problem=ProblemSchema(**body)).model_dump_json()
    body = problem_body(TABLE[NotFound], str(result))
    return BulkRefused(line=number, status=404, problem=ProblemSchema(**body)).model_dump_json()


def _accepted(number: int, view: DeletionView, signer: StatementSigner) -> BulkAccepted:
    deletion = view.deletion
    return BulkAccepted(
        line=number,
        status=201,
        id=deletion.id,
        deletion_status=DeletionStatus(deletion.status),
        subjects=list(view.commitments),
        due_at=deletion.due_at,
        models=[target.model_id for target in view.targets],
        absence=None if view.targets else f"/api/v1/deletions/{deletion.id}/absence",
        receipt=sign_receipt(signer, view),
    )
