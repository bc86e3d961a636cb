"""Assembly of the API."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from service.http import errors
from service.http.address_limits import AddressLimits
from service.http.admission import Admission
from service.http.large_response import LargeResponse
from service.http.middleware import BodyLimit, RequestScope
from service.http.strict_query import check_query
from service.resources import Resources
from service.routes import (
    audit,
    bulk,
    callbacks,
    deletions,
    downloads,
    draws,
    jobs,
    log,
    models,
    opendsr,
    reissue,
    schemas,
    system,
)
from service.settings import Settings

DESCRIPTION = f"""Makes Bayesian models forget people, and certifies it. Start with **POST /api/v1/deletions**.

To try it on this page, choose *Authorize* and paste a token: `lethe up` writes one per role to `.lethe/tokens`.

Errors are `application/problem+json` (RFC 9457); under `/v2` they have OpenDSR's format.

{errors.catalogue()}
"""


DOCS = "/docs"
GC_THRESHOLDS = (10_000, 5, 1_000_000)
"""Thresholds of the three generations. A collection stops all threads for as long as it looks at objects: young ones
are few, and all are looked at in intervals only."""
COLLECT_SECONDS = 600.0
SWITCH_SECONDS = 0.001
"""Longest time that a busy thread holds the interpreter while the event loop waits for it, a fifth of the default."""


def create_app(settings: Settings) -> FastAPI:
    resources = Resources.open(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_SECONDS)
        collections = asyncio.create_task(_collect_garbage())
        yield
        collections.cancel()
        await resources.limits.close()
        resources.close()

    app = FastAPIOffline(
        static_url=f"{DOCS}/assets",
        title="Lethe",
        version=version("lethe"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would repeat the URL, which may contain an identity
        responses=errors.default_responses(),
        dependencies=[Depends(check_query)],
    )
    app.state.resources = resources
    errors.install(app)
    app.add_exception_handler(HTTPException, _render_error)
    app.add_exception_handler(ClientDisconnect, _end_quietly)
    app.add_exception_handler(Exception, _render_crash)
    for module in (bulk, deletions, downloads, log, models, draws, jobs, callbacks, audit, reissue, schemas, system):
        app.include_router(module.router)
    for router in (opendsr.public, opendsr.v1, opendsr.router):
        app.include_router(router)
    _serve_openapi(app)
    app.add_middleware(
        BodyLimit,
        limit=settings.max_body_bytes,
        larger={models.router.prefix: settings.max_upload_bytes, bulk.PATH: settings.max_bulk_bytes},
        render_error=_render_error,
    )
    app.add_middleware(
        Admission,
        callers=resources.callers,
        tokens=resources.limits,
        addresses=AddressLimits(settings.refused_tokens_per_second, settings.refused_tokens_burst),
        render_error=_render_error,
    )
    app.add_middleware(RequestScope, metrics=resources.metrics, pages=(DOCS, "/redoc"))
    return app


def prepare_routes(app: FastAPI) -> None:
    """Build what FastAPI builds at the first request to a router, during which all others would wait."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []})


async def _collect_garbage() -> None:
    while True:
        await asyncio.sleep(COLLECT_SECONDS)
        gc.collect()


def _serve_openapi(app: FastAPI) -> None:
    """Serve the OpenAPI document from a thread, written once: on the event loop it would hold up everybody."""
    path = str(app.openapi_url)
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", None) != path]

    @functools.cache
    def write() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    def answer(_: Request) -> Response:
        return LargeResponse(write(), media_type="application/json")

    app.add_route(path, answer, include_in_schema=False)


async def _render_error(request: Request, error: Exception) -> Response:
    """Render an error raised before routing, or for want of a route, in the format of its path."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        error = HTTPException(405, error.detail, {"Allow": _allowed_methods(request)})
    is_opendsr = request.url.path.startswith(opendsr.PREFIXES)
    # A thread for the signature: the first one may have to create the key.
    return (
        await run_in_threadpool(opendsr.refuse, request, error) if is_opendsr else errors.render_error(request, error)
    )


async def _render_crash(request: Request, error: Exception) -> Response:
    return await _render_error(request, errors.report_crash(request, error))


async def _end_quietly(request: Request, error: Exception) -> Response:
    """Answer a client that left in the middle of its body. Nobody reads it, and it is no crash to be logged as one."""
    return Response(status_code=400)


def _allowed_methods(request: Request) -> str:
    """Return all methods of the path. The router itself names those of one route only."""

    def is_allowed(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return ", ".join(filter(is_allowed, ("DELETE", "GET", "HEAD", "POST", "PUT")))
