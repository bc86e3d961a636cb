"""Health, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import SQLAlchemyError

from service.http.errors import NotReady
from service.resources import ResourcesDep

router = APIRouter(tags=["system"])


@router.get("/healthz", summary="Check that the process is alive")
async def healthz() -> dict[str, str]:
    """Restart the process if it does not answer."""
    return {"status": "alive"}


@router.get("/readyz", summary="Check that database and broker answer")
def readyz(resources: ResourcesDep) -> dict[str, str]:
    """Route requests here while this is 200. Without the broker, requests are accepted and processed later."""
    try:
        resources.database.ping()
    except SQLAlchemyError:
        raise NotReady("the database does not answer; check DATABASE_URL and the database server") from None
    try:
        resources.ringer.ping()
    except (BrokerError, OSError):
        raise NotReady("the broker does not answer; requests are accepted and processed once it is back") from None
    return {"database": "ok", "broker": "ok"}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
def metrics(resources: ResourcesDep) -> Response:
    """Requests and latencies; deletions by status, overdue and due within 7 days, counted at scrape time."""
    with resources.database.reading() as session:
        text = resources.metrics.render(session)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
