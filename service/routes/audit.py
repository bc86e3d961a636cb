"""Certified bounds for auditors: one by one, per model, and as CSV; and daily summaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.http.csv_stream import Cell, csv_chunks
from service.http.exports import Export, record_export, while_valid
from service.resources import ResourcesDep, require_role
from service.schemas.audit import (
    BoundOut,
    BoundPage,
    ModelBoundsPage,
    SummaryPage,
    bound_out,
    model_bounds_out,
    summary_out,
)
from service.schemas.fields import NUMBER, WHOLE_NUMBER, Day, UtcTimestamp, Uuid
from service.schemas.paging import WindowQuery, next_cursor
from service.store.access.tokens import Caller
from service.store.certificates.listing import BoundFilter, find_bound_page, find_model_bounds_page
from service.store.database import Database
from service.store.deletions import summaries
from service.store.paging import Window
from service.store.states import Role
from vocabulary.levels import ListedLevel

router = APIRouter(prefix="/api/v1/audit", tags=["audit"])

BoundReader = Annotated[Caller, Depends(require_role(Role.AUDITOR, Role.OPERATOR))]
CSV_PAGE_ROWS = 500
CSV_COLUMNS = [
    *(name for name in BoundOut.model_fields if name not in {"interval", "policy"}),
    "interval_low",
    "interval_high",
    "policy_epsilon",
    "policy_level",
]
CSV_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page of bounds; with `Accept: text/csv` all matches.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}


def bound_filter(
    model: Uuid | None = None,
    level: Annotated[
        ListedLevel | None,
        Query(description="Level of the bound; `destroyed` for certificates of destruction."),
    ] = None,
    issued_from: Annotated[UtcTimestamp | None, Query(description="Issued at this time or later.")] = None,
    issued_to: Annotated[UtcTimestamp | None, Query(description="Issued before this time.")] = None,
    epsilon_above: Annotated[
        float | None, Query(ge=0, allow_inf_nan=False, description="Only larger bounds."), NUMBER
    ] = None,
) -> BoundFilter:
    return BoundFilter(model, level, issued_from, issued_to, epsilon_above)


BoundQuery = Annotated[BoundFilter, Depends(bound_filter)]


@router.get("/bounds", response_model=BoundPage, summary="List certified bounds", responses=CSV_RESPONSE)
def list_bounds(
    caller: BoundReader,
    resources: ResourcesDep,
    request: Request,
    response: Response,
    window: WindowQuery,
    criteria: BoundQuery,
) -> BoundPage | StreamingResponse:
    """The KL bound of each certificate, its level and the rung that reached it. Newest first.

    Certificates of destruction are listed too: their level is `destroyed`, and they have no bound.
    With `Accept: text/csv` all matches are streamed; `limit` and `cursor` are ignored.
    """
    vary = {"Vary": "Accept"}
    if _wants_csv(request):
        record_export(resources.database, caller, "bounds", asdict(criteria))
        pages = while_valid(resources.database, caller, _csv_pages(resources.database, criteria))
        chunks = csv_chunks(CSV_COLUMNS, pages)
        return Export(chunks, media_type="text/csv", headers=vary)
    response.headers.update(vary)
    with resources.database.reading() as session:
        page = find_bound_page(session, criteria, window)
    return BoundPage(items=[bound_out(bound) for bound in page.items], next_cursor=next_cursor(page))


@router.get("/models", response_model=ModelBoundsPage, summary="Summarize bounds by model")
def list_model_bounds(caller: BoundReader, resources: ResourcesDep, window: WindowQuery) -> ModelBoundsPage:
    """Worst and median bound, and the number of certificates at each level. Newest model first."""
    with resources.database.reading() as session:
        page = find_model_bounds_page(session, window)
    return ModelBoundsPage(items=[model_bounds_out(item) for item in page.items], next_cursor=next_cursor(page))


@router.get("/summaries", response_model=SummaryPage, summary="List daily summaries")
def list_summaries(
    caller: BoundReader,
    resources: ResourcesDep,
    limit: Annotated[int, Query(ge=1, le=366), WHOLE_NUMBER] = 31,
    before: Annotated[
        Day | None, Query(description="Only earlier days. For the next page, the last `day` of this one.")
    ] = None,
) -> SummaryPage:
    """Deletions received, completed, failed, overdue and due soon, by regulation.

    The sweep writes one audit entry per day, shortly after midnight UTC.
    """
    with resources.database.reading() as session:
        page = summaries.find_summaries(session, limit, before)
    return SummaryPage(items=[summary_out(summary) for summary in page])


def _wants_csv(request: Request) -> bool:
    offers = request.headers.get("accept", "").lower().split(",")
    return any(offer.split(";")[0].strip() == "text/csv" for offer in offers)


def _csv_pages(database: Database, criteria: BoundFilter) -> Iterator[list[list[Cell]]]:
    """Read page by page: a slow client holds neither a connection nor the whole list."""
    window: Window | None = Window(CSV_PAGE_ROWS)
    while window is not None:
        with database.reading() as session:
            page = find_bound_page(session, criteria, window)
        yield [_csv_row(bound_out(bound)) for bound in page.items]
        window = replace(window, after=page.end) if page.end else None


def _csv_row(bound: BoundOut) -> list[Cell]:
    low, high = bound.interval or (None, None)
    columns = bound.model_dump(mode="json", exclude={"interval", "policy"})
    policy = bound.policy or {"epsilon": None, "level": None}
    return [*columns.values(), low, high, policy["epsilon"], policy["level"]]
