"""The certified bounds, for auditors: one by one, per model, and as CSV."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.http.csv_stream import Cell, csv_chunks
from service.http.exports import note_export
from service.resources import ResourcesDep, allowed
from service.schemas.audit import (
    BoundOut,
    BoundPage,
    ModelBoundsPage,
    SummaryPage,
    WindowQuery,
    bound_out,
    cursor_of,
    model_bounds_out,
    summary_out,
)
from service.schemas.deletions import Day, Moment
from service.store.access.tokens import Caller
from service.store.certificates import listing as bounds
from service.store.certificates.listing import BoundFilter
from service.store.database import Database
from service.store.deletions import summaries
from service.store.paging import Window
from service.store.states import Role
from vocabulary.levels import CertifiedLevel

router = APIRouter(prefix="/api/v1/audit", tags=["audit"])

BoundReader = Annotated[Caller, Depends(allowed(Role.AUDITOR, Role.OPERATOR))]
CSV_PAGE_ROWS = 500
CSV_COLUMNS = [
    *(name for name in BoundOut.model_fields if name not in {"interval", "policy"}),
    "interval_low",
    "interval_high",
    "policy_epsilon",
    "policy_level",
]
CSV_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page of bounds; with `Accept: text/csv` all that match.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}


def bound_filter(
    model: uuid.UUID | None = None,
    level: CertifiedLevel | None = None,
    issued_from: Annotated[Moment | None, Query(description="At this time or later.")] = None,
    issued_to: Annotated[Moment | None, Query(description="Before this time.")] = None,
    epsilon_above: Annotated[float | None, Query(ge=0, allow_inf_nan=False, description="Only larger bounds.")] = None,
) -> BoundFilter:
    return BoundFilter(model, level, issued_from, issued_to, epsilon_above)


BoundQuery = Annotated[BoundFilter, Depends(bound_filter)]


@router.get("/bounds", response_model=BoundPage, summary="The certified bounds, newest first", responses=CSV_ANSWER)
def list_bounds(
    caller: BoundReader,
    resources: ResourcesDep,
    request: Request,
    response: Response,
    window: WindowQuery,
    wanted: BoundQuery,
) -> BoundPage | StreamingResponse:
    """Each certificate's KL bound, how sure it is and how it was reached.

    With `Accept: text/csv` every match is streamed, whatever `limit` and `cursor` say.
    """
    varies = {"Vary": "Accept"}
    if _wants_csv(request):
        note_export(resources.database, caller, "bounds", asdict(wanted))
        chunks = csv_chunks(CSV_COLUMNS, _csv_pages(resources.database, wanted))
        return StreamingResponse(chunks, media_type="text/csv", headers=varies)
    response.headers.update(varies)
    with resources.database.reading() as session:
        found = bounds.page(session, wanted, window)
    return BoundPage(items=[bound_out(bound) for bound in found.items], next_cursor=cursor_of(found))


@router.get("/models", response_model=ModelBoundsPage, summary="The bounds of each model in a few numbers")
def list_model_bounds(caller: BoundReader, resources: ResourcesDep, window: WindowQuery) -> ModelBoundsPage:
    """Worst and median bound, and how many certificates at each level. Newest model first."""
    with resources.database.reading() as session:
        found = bounds.page_of_models(session, window)
    return ModelBoundsPage(items=[model_bounds_out(item) for item in found.items], next_cursor=cursor_of(found))


@router.get("/summaries", response_model=SummaryPage, summary="Each day in a few numbers")
def list_summaries(
    caller: BoundReader,
    resources: ResourcesDep,
    limit: Annotated[int, Query(ge=1, le=366)] = 31,
    before: Annotated[Day | None, Query(description="Only earlier days: the last `day` of the page before.")] = None,
) -> SummaryPage:
    """What was received and completed, what failed, and what is late or soon due, by regulation.

    The sweep writes one entry of the audit trail for each day, shortly after midnight UTC.
    """
    with resources.database.reading() as session:
        found = summaries.page(session, limit, before)
    return SummaryPage(items=[summary_out(one) for one in found])


def _wants_csv(request: Request) -> bool:
    offers = request.headers.get("accept", "").lower().split(",")
    return any(offer.split(";")[0].strip() == "text/csv" for offer in offers)


def _csv_pages(database: Database, wanted: BoundFilter) -> Iterator[list[list[Cell]]]:
    """One short look at the database for each page: a slow reader holds neither a connection nor the whole list."""
    window: Window | None = Window(CSV_PAGE_ROWS)
    while window is not None:
        with database.reading() as session:
            found = bounds.page(session, wanted, window)
        yield [_csv_row(bound_out(bound)) for bound in found.items]
        window = replace(window, after=found.end) if found.end else None


def _csv_row(bound: BoundOut) -> list[Cell]:
    low, high = bound.interval or (None, None)
    flat = bound.model_dump(mode="json", exclude={"interval", "policy"})
    return [*flat.values(), low, high, bound.policy["epsilon"], bound.policy["level"]]
