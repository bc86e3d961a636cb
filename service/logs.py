"""Structured logs: one JSON object per line on standard output, also for the log lines of libraries."""

from __future__ import annotations

import logging
import sys
import traceback

import structlog
from structlog.processors import ExceptionRenderer
from structlog.typing import ExcInfo, Processor

SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure_logging(level: str, *, sees_identities: bool = False) -> None:
    """Set up logging. With `sees_identities`, exception messages are left out: they may repeat what a caller sent."""
    render = ExceptionRenderer(format_without_messages) if sees_identities else structlog.processors.format_exc_info
    shared: tuple[Processor, ...] = (*SHARED, render)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # logs whole URLs


def format_without_messages(exc_info: ExcInfo) -> str:
    """Format types and tracebacks of an exception and its causes, without their messages."""
    error: BaseException | None = exc_info[1]
    parts: list[str] = []
    while error is not None:
        parts.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n\nled to\n\n".join(reversed(parts))
