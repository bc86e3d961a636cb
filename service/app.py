"""The API, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from service import errors
from service.middleware import BodyLimit, RequestScope
from service.resources import Resources
from service.routes import audit, certificates, deletions, jobs, models, opendsr, system
from service.settings import Settings

DESCRIPTION = "Makes Bayesian models forget people, and proves it. Start with **POST /api/v1/deletions**."


def create_app(settings: Settings) -> FastAPI:
    resources = Resources.open(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        resources.close()

    app = FastAPI(
        title="Lethe",
        version=version("lethe"),
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=errors.documented(),
    )
    app.state.resources = resources
    errors.install(app)
    for module in (deletions, certificates, models, jobs, audit, system):
        app.include_router(module.router)
    for router in (opendsr.public, opendsr.router):
        app.include_router(router)
    app.add_middleware(
        BodyLimit,
        limit=settings.max_body_bytes,
        upload_limit=settings.max_upload_bytes,
        upload_path=models.router.prefix,
    )
    app.add_middleware(RequestScope, metrics=resources.metrics)
    return app
