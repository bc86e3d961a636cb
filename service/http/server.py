"""The API's HTTP server: uvicorn with Lethe's protocol and limits."""

from __future__ import annotations

import functools
import logging
import resource
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from service.http.connections import ConnectionLimits, Connections
from service.http.protocol import GuardedProtocol
from service.settings import Settings

BACKLOG = 256
"""Connections that the kernel holds for us. Also the most that are accepted in one go: more would delay requests."""
SHUTDOWN_SECONDS = 5
"""Without a limit, an open event stream would delay the shutdown."""
MANY_FILES = 1 << 20
REPEATED_WARNINGS = ("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket")
"""Starts of uvicorn's warnings that a client can cause at will. Connections counts what matters."""


def server_config(app: FastAPI, settings: Settings, host: str = "127.0.0.1", port: int = 8000) -> uvicorn.Config:
    connections = Connections(ConnectionLimits.from_settings(settings, raise_file_limit()))
    logging.getLogger("uvicorn.error").addFilter(_is_no_repeated_warning)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        # A class of its own, so that no other parser is chosen because it happens to be installed.
        http=cast(Any, functools.partial(GuardedProtocol, connections)),
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard one, if there is one, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:  # some systems do not allow it as a soft limit
        return MANY_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _is_no_repeated_warning(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(REPEATED_WARNINGS)
