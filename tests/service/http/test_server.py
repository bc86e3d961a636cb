from __future__ import annotations

import logging
import resource

import pytest
import uvicorn
from fastapi import FastAPI

from service.http.server import raise_file_limit, server_config
from service.settings import Settings

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_no_proxy_is_trusted_unless_it_is_named(settings: Settings) -> None:
    assert not server_config(FastAPI(), settings).proxy_headers
    trusting = settings.model_copy(update={"trusted_proxies": "10.0.0.0/8"})
    config = server_config(FastAPI(), trusting)
    assert (config.proxy_headers, config.forwarded_allow_ips) == (True, "10.0.0.0/8")


def test_the_file_limit_is_raised_to_the_hard_one(settings: Settings) -> None:
    limit = raise_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
    assert limit >= soft


def test_warnings_that_clients_cause_at_will_are_not_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    uvicorn.Server(server_config(FastAPI(), settings))
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").warning("something else")
    assert caplog.messages == ["something else"]
