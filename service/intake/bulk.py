"""Bulk requests as NDJSON: one deletion per line, one answer per line. Errors never repeat the input.

A bulk is parsed and stored in slices, so that it holds up nobody for long. The same body always has the same slices.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from service.http.errors import TABLE, ProblemSchema, field_path, problem_body
from service.http.strict_json import read_json
from service.intake.parsing import RequestParser
from service.intake.submission import Submission
from service.schemas.deletions import DeletionCreate, absence_path
from service.store.certificates.statements import sign_receipt
from service.store.deletions.creation import Outcome
from service.store.deletions.idempotency import BULK, KeyUse
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView
from service.store.errors import NotFound
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus

MEDIA_TYPE = "application/x-ndjson"
MAX_LINES = 10_000
MAX_LINE_BYTES = 1 << 20
"""A longer line is cut, and so invalid."""
MAX_LINE_ERRORS = 10
LINES_PER_SLICE = 200
NAMES_PER_SLICE = 1_000
NOT_STORED = "this line was not stored; send it again, or the whole request under the same Idempotency-Key"
NumberedLine = tuple[int, bytes]


class BulkAccepted(BaseModel):
    """A line that became a deletion."""

    line: int = Field(description="Line number from 1; empty lines count.", examples=[1])
    status: Literal[201]
    id: uuid.UUID
    deletion_status: DeletionStatus
    subjects: list[str] = Field(description="Keyed commitments that stand for the subjects in log and certificates.")
    due_at: datetime
    models: list[uuid.UUID] = Field(
        description="Models that hold what the line names. Empty as long as the deletion can be cancelled."
    )
    absence: str | None = Field(description="Path of the certificate that no model held the subject.")
    receipt: str = Field(description="Signed bundle for `lethe verify`.")


class BulkRefused(BaseModel):
    """A line that was refused: nothing of it was stored."""

    line: int
    status: Literal[404, 422, 503, 507]
    problem: ProblemSchema


@dataclass(frozen=True)
class Line:
    number: int
    content: DeletionRequest | ValidationError

    @property
    def names(self) -> int:
        """Number of subjects and records that the line names."""
        if isinstance(self.content, ValidationError):
            return 0
        return len(self.content.lookups) + len(self.content.records)


def split_lines(content: bytes) -> Sequence[NumberedLine]:
    """Return the lines that are not empty."""
    # Counted first: splitting millions of empty lines would stop the interpreter.
    parts = content.split(b"\n") if content.count(b"\n") < 2 * MAX_LINES else ()
    numbered = [(number, line) for number, line in enumerate(parts, start=1) if line.strip()]
    if not 0 < len(numbered) <= MAX_LINES:
        message = f"send 1 to {MAX_LINES} deletions, each as JSON on its own line"
        raise RequestValidationError([{"type": "lines", "loc": ("body",), "msg": message}])
    return numbered


def read_lines(numbered: Iterable[NumberedLine], parse: Callable[[DeletionCreate], DeletionRequest]) -> Sequence[Line]:
    return [Line(number, _read_line(line, parse)) for number, line in numbered]


def slice_lines(lines: Iterable[Line]) -> Iterator[Sequence[Line]]:
    """Yield parts small enough for a transaction that others wait for."""
    part: list[Line] = []
    names = 0
    for line in lines:
        part.append(line)
        names += line.names
        if len(part) >= LINES_PER_SLICE or names >= NAMES_PER_SLICE:
            yield part
            part, names = [], 0
    if part:
        yield part


def make_submissions(
    lines: Sequence[Line], parser: RequestParser, key: str | None, signer: StatementSigner
) -> Sequence[Submission]:
    whole = parser.key_use(key, BULK, _requests(lines))
    return [
        _make_submission(part, replace(parser, body_id=uuid.uuid4()), key, number, whole, signer)
        for number, part in enumerate(slice_lines(lines))
    ]


def _make_submission(
    lines: Sequence[Line],
    parser: RequestParser,
    key: str | None,
    number: int,
    whole: KeyUse | None,
    signer: StatementSigner,
) -> Submission:
    requests = [replace(request, body_id=parser.body_id) for request in _requests(lines)]
    use = parser.key_use(key, BULK, requests, number)
    return Submission(
        requests,
        lambda outcomes: write_lines(lines, outcomes, signer),
        _bind(use, whole) if use and whole else None,
        lambda error: write_failure(lines, error),
    )


def _bind(use: KeyUse, whole: KeyUse) -> KeyUse:
    """Bind a slice to the whole body, so that another body under the same key is refused, whichever line differs.

    Not under a guessable key: the mark of one slice would name people of others, who may be erased earlier.
    """
    return replace(use, content=whole.content) if use.lasting_mac else use


def _requests(lines: Iterable[Line]) -> Sequence[DeletionRequest]:
    return [line.content for line in lines if isinstance(line.content, DeletionRequest)]


def write_lines(lines: Sequence[Line], outcomes: Sequence[Outcome], signer: StatementSigner) -> str:
    """Return one line for each, in order. `outcomes` are those of the lines that could be parsed."""
    remaining = iter(outcomes)
    results = (line.content if isinstance(line.content, ValidationError) else next(remaining) for line in lines)
    return "".join(f"{_write_line(line.number, result, signer)}\n" for line, result in zip(lines, results, strict=True))


def write_failure(lines: Sequence[Line], error: Exception) -> str:
    """Return one line for each of a slice that was not stored. Raise an error that no status describes."""
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None or row.status not in (503, 507):
        raise error
    status: Literal[503, 507] = 507 if row.status == 507 else 503
    problem = ProblemSchema(**problem_body(row, NOT_STORED))
    refused = (BulkRefused(line=line.number, status=status, problem=problem) for line in lines)
    return "".join(f"{line.model_dump_json()}\n" for line in refused)


def _read_line(line: bytes, parse: Callable[[DeletionCreate], DeletionRequest]) -> DeletionRequest | ValidationError:
    try:
        return parse(DeletionCreate.model_validate(read_json(line[: MAX_LINE_BYTES + 1])))
    except ValidationError as error:
        return error


def _write_line(number: int, result: Outcome | ValidationError, signer: StatementSigner) -> str:
    if isinstance(result, DeletionView):
        return _accepted(number, result, signer).model_dump_json()
    if isinstance(result, ValidationError):
        items = result.errors(include_input=False)[:MAX_LINE_ERRORS]
        errors = [{"field": field_path(item), "message": item["msg"]} for item in items]
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
        absence=absence_path(view),
        receipt=sign_receipt(signer, view),
    )
