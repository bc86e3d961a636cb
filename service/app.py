"""The API, put together."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.routing import Match

from service.http import errors
from service.http.middleware import BodyLimit, RequestScope
from service.http.rate_limits import RateLimit, RateLimits
from service.resources import Resources
from service.routes import (
    audit,
    bulk,
    callbacks,
    deletions,
    downloads,
    jobs,
    log,
    models,
    opendsr,
    system,
)
from service.settings import Settings

DESCRIPTION = f"""Makes Bayesian models forget people, and proves it. Start with **POST /api/v1/deletions**.

To try it here, choose *Authorize* and paste a token: `lethe up` leaves one for each role in `.lethe/tokens`.

Errors are `application/problem+json` (RFC 9457); under `/v2` they have the shape that OpenDSR gives them.

{errors.catalogue()}
"""


DOCS = "/docs"
RARELY = (50_000, 20, 20)
"""How many new objects start a collection, and how many of those one of the older; measured on 10,000 bulk lines."""


def create_app(settings: Settings) -> FastAPI:
    resources = Resources.open(settings)
    limits = RateLimits(settings.broker, settings.rate_per_second, settings.rate_burst, resources.hasher.mac)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # All that a large request makes lives until its answer: to look it through again and again finds nothing.
        gc.set_threshold(*RARELY)
        yield
        await limits.close()
        resources.close()

    app = FastAPIOffline(
        static_url=f"{DOCS}/assets",
        title="Lethe",
        version=version("lethe"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,  # the redirection would repeat the whole URL, and with it what somebody typed into it
        responses=errors.documented(),
    )
    app.state.resources = resources
    errors.install(app)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(Exception, _tell_of_crash)
    for module in (bulk, deletions, downloads, log, models, jobs, callbacks, audit, system):
        app.include_router(module.router)
    for router in (opendsr.public, opendsr.v1, opendsr.router):
        app.include_router(router)
    app.add_middleware(
        BodyLimit,
        limit=settings.max_body_bytes,
        larger={models.router.prefix: settings.max_upload_bytes, bulk.PATH: settings.max_bulk_bytes},
        refuse=_refuse,
    )
    app.add_middleware(RateLimit, limits=limits, refuse=_refuse)
    app.add_middleware(RequestScope, metrics=resources.metrics, pages=(DOCS, "/redoc"))
    return app


def _refuse(request: Request, error: Exception) -> Response:
    """What is refused before a route is found, or because there is none, in the words of those who are spoken to."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        error = HTTPException(405, error.detail, {"Allow": _methods(request)})
    speaks_opendsr = request.url.path.startswith(opendsr.PREFIXES)
    return opendsr.refused(request, error) if speaks_opendsr else errors.refused(request, error)


def _tell_of_crash(request: Request, error: Exception) -> Response:
    return _refuse(request, errors.crashed(request, error))


def _methods(request: Request) -> str:
    """All that the path takes: the router itself names those of one route only."""
    asked = [{**request.scope, "method": method} for method in ("DELETE", "GET", "HEAD", "POST", "PUT")]
    taken = [scope for scope in asked if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)]
    return ", ".join(scope["method"] for scope in taken)
