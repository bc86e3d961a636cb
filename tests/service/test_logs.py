from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import structlog

from service.logs import configure_logging, format_without_messages

IDENTITY = "ada@example.org"


def log_lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def raise_chained() -> None:
    try:
        {}[IDENTITY]
    except KeyError as error:
        raise ValueError(IDENTITY) from error


def log_exception() -> None:
    try:
        raise_chained()
    except ValueError:
        structlog.get_logger("test").exception("batch.crashed")


def test_own_lines_and_those_of_libraries_are_json(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    structlog.get_logger("test").info("model.registered", model_id="m-1")
    logging.getLogger("library").warning("slow %s", "query", extra={"seconds": 3})
    own, library = log_lines(capfd)
    assert (own["event"], own["model_id"], own["logger"], own["level"]) == ("model.registered", "m-1", "test", "info")
    assert (library["event"], library["seconds"], library["logger"]) == ("slow query", 3, "library")
    assert own["timestamp"].endswith("Z")


def test_lines_below_the_level_are_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("WARNING")
    structlog.get_logger("test").info("unimportant")
    structlog.get_logger("test").warning("important")
    logging.getLogger("httpx").info("GET https://hooks.example/?key=secret")
    assert [line["event"] for line in log_lines(capfd)] == ["important"]


def test_bound_context_is_part_of_each_line(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO")
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        logging.getLogger("library").warning("inside")
    logging.getLogger("library").warning("outside")
    assert [line.get("request_id") for line in log_lines(capfd)] == ["r-1", None]


def test_exception_messages_are_logged_unless_they_may_contain_identities(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO")
    log_exception()
    (line,) = log_lines(capfd)
    assert line["exception"].count(IDENTITY) == 2
    configure_logging("INFO", sees_identities=True)
    log_exception()
    (line,) = log_lines(capfd)
    assert IDENTITY not in str(line)
    assert line["exception"].endswith("ValueError")


def test_types_and_tracebacks_are_formatted_from_the_cause_to_the_last_exception() -> None:
    try:
        raise_chained()
    except ValueError as error:
        text = format_without_messages((type(error), error, error.__traceback__))
    cause, final = text.split("\n\nled to\n\n")
    assert cause.endswith("KeyError")
    assert final.endswith("ValueError")
    assert "in raise_chained" in cause


def test_a_suppressed_context_is_left_out() -> None:
    try:
        try:
            {}[IDENTITY]
        except KeyError:
            raise ValueError(IDENTITY) from None
    except ValueError as error:
        text = format_without_messages((type(error), error, error.__traceback__))
    assert "led to" not in text
    assert text.endswith("ValueError")
