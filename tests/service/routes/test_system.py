from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest
import redis

from lethe.embedded_redis import redis_command
from service.broker_socket import broker_socket
from service.settings import Settings, load_settings
from service.store.database import Database
from service.store.doorbell import Doorbell
from service.store.tables import Role
from tests import samples
from tests.conftest import answers, wait_until
from tests.service.conftest import Api


def test_alive_and_ready(api: Api) -> None:
    assert api.call(None, "GET", "/healthz").json() == {"status": "alive"}
    assert api.call(None, "GET", "/readyz").json() == {"database": "ok", "broker": "ok"}


def test_the_openapi_document_names_our_errors(api: Api) -> None:
    document = api.call(None, "GET", "/openapi.json").json()
    for operations in document["paths"].values():
        for operation in operations.values():
            assert list(operation["responses"]["422"]["content"]) == ["application/problem+json"]
    assert api.call(None, "GET", "/docs").status_code == 200


def test_metrics_tell_the_state_of_the_work(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json={"subjects": [samples.person(1)]})
    text = api.call(None, "GET", "/metrics").text
    assert 'lethe_deletions{status="pending"} 1.0' in text
    assert 'lethe_http_requests_total{method="POST",route="/api/v1/deletions",status="201"} 1.0' in text


def test_the_broker_may_be_away(tmp_path: Path) -> None:
    """Ringing fails quietly and works when Redis is there; also in a folder whose name a URL must quote."""
    settings = load_settings(tmp_path / "a#b c?d%20e")
    doorbell = Doorbell(settings.broker)
    model_id = uuid.uuid4()
    assert doorbell.ring(model_id) is False
    server = subprocess.Popen(redis_command(settings.data_dir))
    socket = broker_socket(settings.data_dir)
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            wait_until(lambda: answers(client), "Redis answers")
            doorbell.ping()
            assert doorbell.ring(model_id) is True
            assert client.llen("celery") == 1
    finally:
        server.terminate()
        server.wait()
        doorbell.close()


@pytest.mark.parametrize("path", ["/healthz", "/no/such/path", "/api/v1/deletions", "/v2/discovery"])
def test_every_answer_carries_the_security_headers(api: Api, path: str) -> None:
    headers = api.call(None, "GET", path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
