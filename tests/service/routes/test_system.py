from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from lethe.local.embedded_redis import redis_command
from service.http.errors import ALL_ROWS, ROUTING, TABLE
from service.settings import Settings, load_settings
from service.settings.broker_socket import broker_socket
from service.store import migrate
from service.store.batches.doorbell import Doorbell
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.conftest import redis_responds
from tests.service.conftest import Api, serving
from tests.waiting import wait_until


def test_alive_and_ready(api: Api) -> None:
    assert api.call(None, "GET", "/healthz").json() == {"status": "alive"}
    names = ("database", "keys", "disk", "artifacts", "broker")
    assert api.call(None, "GET", "/readyz").json() == dict.fromkeys(names, "ok")


def test_probes_may_ask_for_the_head_alone(api: Api) -> None:
    for path in ("/healthz", "/readyz"):
        response = api.call(None, "HEAD", path)
        assert (response.status_code, response.content) == (200, b"")


def test_the_start_page_leads_to_the_documentation(api: Api) -> None:
    response = api.call(None, "GET", "/")
    assert (response.status_code, response.headers["location"]) == (307, "/docs")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_not_ready_names_every_fault(settings: Settings, database: Database) -> None:
    faulty = settings.model_copy(
        update={"redis_url": SecretStr("redis://127.0.0.1:1/0"), "min_free_bytes": sys.maxsize}
    )
    with serving(faulty, database) as api:
        answer = api.call(None, "GET", "/readyz")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["type"] == "urn:lethe:problem:not-ready"
    for fault in ("the disk of the data folder is almost full", "the broker does not answer"):
        assert fault in answer.json()["detail"]


def test_the_openapi_document_names_our_errors(api: Api) -> None:
    document = api.call(None, "GET", "/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            refusal = operation["responses"]["401"]["content"]
            spoken = "application/json" if path.startswith("/v2/requests") else "application/problem+json"
            assert list(refusal) == [spoken], path
    for row in ALL_ROWS:
        assert f"| {row.status} | `urn:lethe:problem:{row.slug}` | " in document["info"]["description"]
    named = json.dumps(document["paths"])
    for row in (*TABLE.values(), ROUTING[416]):
        assert f"urn:lethe:problem:{row.slug}" in named


def test_every_route_is_explained_and_every_body_has_an_example(api: Api) -> None:
    document = api.call(None, "GET", "/openapi.json").json()
    bodies = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            for kind, content in operation.get("requestBody", {"content": {}})["content"].items():
                bodies += 1
                assert kind == "multipart/form-data" or example_of(document, content), (method, path)
    assert bodies >= 5


def example_of(document: dict[str, Any], content: dict[str, Any]) -> Any:
    """Of the whole body, not only of its fields: so that what `/docs` fills in can be sent."""
    schema = content["schema"]
    named = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], {})
    examples = [example for holder in (content, schema, named) for example in holder.get("examples", [])]
    if "example" in content or examples:
        return content.get("example") or examples
    return all("examples" in field for field in named.get("properties", {"": {}}).values())


def test_the_documents_page_is_served_with_all_it_names_of_ours(api: Api) -> None:
    page = api.call(None, "GET", "/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) >= 3
    for asset in assets:  # from here and nowhere else
        assert asset.startswith("/docs/assets/")
        assert api.call(None, "GET", asset).status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert api.call(None, "GET", "/healthz").headers["content-security-policy"].startswith("default-src 'none'")
    (document,) = re.findall(r"url: '([^']+)'", page.text)
    assert api.call(None, "GET", document).json()["info"]["title"] == "Lethe"


def test_metrics_tell_the_state_of_the_work(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json={"subjects": [samples.person(1)]})
    text = api.call(None, "GET", "/metrics").text
    assert 'lethe_deletions{status="pending"} 1.0' in text
    assert 'lethe_http_requests_total{method="POST",route="/api/v1/deletions",status="201"} 1.0' in text


def test_the_broker_may_be_away(tmp_path: Path) -> None:
    """Ringing fails quietly and works when Redis is there; also in a folder whose name a URL must quote."""
    settings = load_settings(tmp_path / "a#b c?d%20e")
    database = Database(settings.database)
    migrate.upgrade(database)
    doorbell = Doorbell(settings.broker, database)
    model_id = uuid.uuid4()
    assert doorbell.ring(model_id) is False
    server = subprocess.Popen(redis_command(settings.data_dir))
    socket = broker_socket(settings.data_dir)
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            wait_until(lambda: redis_responds(client), "Redis answers")
            doorbell.ping()
            assert doorbell.ring(model_id) is True
            assert client.llen("lethe.cpu") == 1
    finally:
        server.terminate()
        server.wait()
        doorbell.close()
        database.close()


@pytest.mark.parametrize("path", ["/healthz", "/no/such/path", "/api/v1/deletions", "/v2/discovery"])
def test_every_answer_carries_the_security_headers(api: Api, path: str) -> None:
    headers = api.call(None, "GET", path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
