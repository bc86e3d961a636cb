"""Is it alive, is it ready, how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Response
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import SQLAlchemyError

from service.http.errors import NotReady
from service.resources import ResourcesDep

router = APIRouter(tags=["system"])


@router.get("/healthz", summary="Alive")
async def healthz() -> dict[str, str]:
    """The process runs and answers. Restart it if it does not."""
    return {"status": "alive"}


@router.get("/readyz", summary="Database and broker answer")
def readyz(resources: ResourcesDep) -> dict[str, str]:
    """Send it requests as long as this is 200. Without the broker intake goes on, and work catches up later."""
    try:
        resources.database.ping()
    except SQLAlchemyError:
        raise NotReady("the database does not answer; check DATABASE_URL and the server") from None
    try:
        resources.doorbell.ping()
    except (BrokerError, OSError):
        raise NotReady("the broker does not answer; intake goes on and work catches up when it is back") from None
    return {"database": "ok", "broker": "ok"}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
def metrics(resources: ResourcesDep) -> Response:
    """Requests and their times, and at the moment of asking: deletions by status, overdue and due within 7 days."""
    with resources.database.reading() as session:
        text = resources.metrics.render(session)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
