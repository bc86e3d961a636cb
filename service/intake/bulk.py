"""Many deletions as NDJSON: lines in, lines out, and what is wrong with one is told without what it says."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from service.http.errors import TABLE, ProblemSchema, field_path, problem_body
from service.schemas.deletions import DeletionCreate
from service.store.certificates.statements import sign_receipt
from service.store.deletions.creation import NewDeletion
from service.store.deletions.lifecycle import DeletionView
from service.store.errors import NotFound
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus

MEDIA_TYPE = "application/x-ndjson"
MOST_LINES = 10_000


class BulkAccepted(BaseModel):
    """A line that became a deletion."""

    line: int = Field(description="Counted from 1, empty lines included.", examples=[1])
    status: Literal[201]
    id: uuid.UUID
    deletion_status: DeletionStatus
    subjects: list[str] = Field(description="Keyed commitments: what log and certificate call the subjects.")
    due_at: datetime
    models: list[uuid.UUID] = Field(description="Those that hold what the line names.")
    absence: str | None = Field(description="Where to download the certificate that no model held the subject.")
    receipt: str = Field(description="A signed bundle, for `lethe verify`.")


class BulkRefused(BaseModel):
    """A line of which nothing was stored."""

    line: int
    status: Literal[404, 422]
    problem: ProblemSchema


@dataclass(frozen=True)
class Line:
    number: int
    asked: NewDeletion | ValidationError


def read_lines(content: bytes, understand: Callable[[DeletionCreate], NewDeletion]) -> Sequence[Line]:
    numbered = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if not 0 < len(numbered) <= MOST_LINES:
        told = f"send 1 to {MOST_LINES} deletions, each as JSON on a line of its own"
        raise RequestValidationError([{"type": "lines", "loc": ("body",), "msg": told}])
    return [Line(number, _read(line, understand)) for number, line in numbered]


def write_lines(lines: Sequence[Line], outcomes: Sequence[DeletionView | NotFound], signer: StatementSigner) -> str:
    """One line for each, in order. `outcomes` are those of the lines that could be read."""
    rest = iter(outcomes)
    told = (line.asked if isinstance(line.asked, ValidationError) else next(rest) for line in lines)
    return "".join(f"{_told(line.number, one, signer)}\n" for line, one in zip(lines, told, strict=True))


def _read(line: bytes, understand: Callable[[DeletionCreate], NewDeletion]) -> NewDeletion | ValidationError:
    try:
        return understand(DeletionCreate.model_validate_json(line))
    except ValidationError as error:
        return error


def _told(number: int, one: DeletionView | NotFound | ValidationError, signer: StatementSigner) -> str:
    if isinstance(one, DeletionView):
        return _accepted(number, one, signer).model_dump_json()
    if isinstance(one, NotFound):
        body = problem_body(TABLE[NotFound], str(one))
        return BulkRefused(line=number, status=404, problem=ProblemSchema(**body)).model_dump_json()
    errors = [{"field": field_path(item), "message": item["msg"]} for item in one.errors(include_input=False)]
    body = problem_body(TABLE[RequestValidationError], "see `errors` for each field", errors=errors)
    return BulkRefused(line=number, status=422, problem=ProblemSchema(**body)).model_dump_json()


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
