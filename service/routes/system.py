"""Health, readiness and metrics; the start page."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.http.errors import NotReady
from service.resources import ResourcesDep

router = APIRouter(tags=["system"])


@router.get("/", include_in_schema=False)
async def start_page() -> RedirectResponse:
    """Lead people who open the service in a browser to its documentation."""
    return RedirectResponse("/docs", status_code=307)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Check that the process is alive")
async def healthz() -> dict[str, str]:
    """Restart the process if it does not answer."""
    return {"status": "alive"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Check what the API depends on")
async def readyz(resources: ResourcesDep) -> dict[str, str]:
    """Database, keys, disk, artifact store and broker. `detail` of a 503 names each fault with its remedy.

    Without the broker, requests are accepted and processed later. Answers within 5 seconds, also if the database hangs.
    """
    problems = await resources.readiness.find_problems()
    if problems:
        raise NotReady("; ".join(problems.values()))
    return dict.fromkeys(resources.readiness.names, "ok")


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
def metrics(resources: ResourcesDep) -> Response:
    """Requests and latencies; deletions by status, overdue and due within 7 days, counted at scrape time."""
    with resources.database.reading() as session:
        text = resources.metrics.render(session)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
