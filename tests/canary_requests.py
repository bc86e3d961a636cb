"""Requests with canary identities, valid and invalid, on every route, with the expected status."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from safetensors.numpy import save

from service.store.states import Role
from tests import samples
from tests.canaries import CANARIES, CRASHING
from tests.service.conftest import Api

DELETIONS, MODELS = "/api/v1/deletions", "/api/v1/models"
UNKNOWN = "00000000-0000-4000-8000-000000000000"
C, P, A, E = Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR, Role.ENGINEER
EMAIL, NUMBER = CANARIES["email"], CANARIES["controller_customer_id"]
KEYS = ("3f0c9a52-6b1e-4d43-9a77-0c5f8e2d1b64", "a81d6f0e-2c57-4b9f-8d3a-7e5b4c1f9062")
PEOPLE = [{"identity_type": kind, "identity_value": value} for kind, value in CANARIES.items()]
CRASH = [{"identity_type": "email", "identity_value": CRASHING}]
CANARY_HEADERS = {
    "User-Agent": EMAIL,
    "Referer": f"https://crm.example/?who={EMAIL}",
    "Cookie": EMAIL,
    "X-Request-ID": NUMBER[1:],
}
"""Identities in headers. The request id takes only digits, so the plus sign is left out."""


@dataclass(frozen=True)
class CanaryRequest:
    status: int
    role: Role | None
    method: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)

    def send(self, api: Api) -> httpx.Response:
        options = dict(self.options)
        response = api.call(
            self.role, self.method, self.path, headers={**CANARY_HEADERS, **options.pop("headers", {})}, **options
        )
        assert response.status_code == self.status, (self, response.text)
        return response


def response_bytes(response: httpx.Response) -> bytes:
    """Return headers and body, without the field in which OpenDSR requires the request to be repeated."""
    body = response.content
    if response.status_code == 201 and response.request.url.path.startswith(("/v1/", "/v2/")):
        document = response.json()
        assert document.pop("encoded_request")
        body = json.dumps(document).encode()
    return b"\n".join([*(b": ".join(header) for header in response.headers.raw), body])


def register(api: Api, name: str) -> str:
    """Register a model whose subjects include the canaries; return its id."""
    manifest = {**json.loads(samples.parts()["manifest"]), "name": name}
    response = api.call(E, "POST", MODELS, files=_parts(manifest=json.dumps(manifest).encode()))
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def native(**fields: Any) -> dict[str, Any]:
    return {"subjects": PEOPLE, **fields}


def opendsr(**changes: Any) -> dict[str, Any]:
    whole = {
        "regulation": "gdpr",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-15T15:00:00Z",
        "subject_identities": [{**person, "identity_format": "raw"} for person in PEOPLE],
    }
    return {**whole, **changes}


def all_requests(model_id: str) -> Iterator[CanaryRequest]:
    """Yield all requests. The order matters: some repeat an idempotency key."""
    yield from _native_requests(model_id)
    yield from _bulk_requests()
    yield from _opendsr_requests()
    yield from _registrations()
    yield from _other_requests(model_id)


def _native_requests(model_id: str) -> Iterator[CanaryRequest]:
    key = {"headers": {"Idempotency-Key": KEYS[0]}}
    for status, options in (
        (422, {"json": native(models=[model_id]), "params": {"who": EMAIL}, **key}),
        (201, {"json": native(models=[model_id]), **key}),
        (201, {"json": native(models=[model_id]), **key}),
        (422, {"json": native(regulation="ccpa"), **key}),
        (422, {"json": native(models=[model_id]), "headers": {"Idempotency-Key": EMAIL}}),
        (422, {"json": native(models=[model_id]), "headers": {"Idempotency-Key": NUMBER}}),
        (422, {"json": native(callback_urls=[f"https://crm.example/{EMAIL}"])}),
        (404, {"json": native(models=[UNKNOWN])}),
        (422, {"json": native(models=[EMAIL])}),
        (422, {"json": native(regulation=EMAIL)}),
        (422, {"json": native(callback_urls=[f"https://{EMAIL}/"])}),
        (422, {"json": native(records=[{"model": model_id, "record": NUMBER}])}),
        (422, {"json": native(**{EMAIL: 1})}),
        (422, {"json": {"subjects": EMAIL}}),
        (422, {"json": {"subjects": [{"identity_type": EMAIL, "identity_value": EMAIL}]}}),
        (422, {"json": {"subjects": [{"identity_type": "email", "identity_value": [EMAIL]}]}}),
        (422, {"json": {"subjects": [{"identity_type": "email", "identity_value": EMAIL * 20}]}}),
        (422, {"json": {"subjects": [{**PEOPLE[2], EMAIL: EMAIL}]}}),
        (422, {"content": f'{{"subjects": "{EMAIL}', "headers": {"Content-Type": "application/json"}}),
        (422, {"content": EMAIL, "headers": {"Content-Type": "text/plain"}}),
        (413, {"content": EMAIL.encode() * 40_000}),
        (500, {"json": {"subjects": CRASH}}),
    ):
        yield CanaryRequest(status, C, "POST", DELETIONS, options)
    yield CanaryRequest(403, A, "POST", DELETIONS, {"json": native()})
    yield CanaryRequest(
        401, None, "POST", DELETIONS, {"json": native(), "headers": {"Authorization": f"Bearer {EMAIL}"}}
    )


def _bulk_requests() -> Iterator[CanaryRequest]:
    lines = [
        json.dumps(native()),
        json.dumps(native(**{EMAIL: 1})),
        json.dumps(native(models=[UNKNOWN])),
        json.dumps(native(regulation=NUMBER), ensure_ascii=False),
        f'{{"subjects": "{EMAIL}',
        EMAIL,
    ]
    key = {"headers": {"Idempotency-Key": KEYS[1]}}
    yield CanaryRequest(200, C, "POST", f"{DELETIONS}/bulk", {"content": "\n".join(lines).encode(), **key})
    yield CanaryRequest(422, C, "POST", f"{DELETIONS}/bulk", {"content": lines[0], **key})
    yield CanaryRequest(422, C, "POST", f"{DELETIONS}/bulk", {"content": f"{EMAIL}\n" * 10_001})
    yield CanaryRequest(500, C, "POST", f"{DELETIONS}/bulk", {"content": json.dumps({"subjects": CRASH})})


def _opendsr_requests() -> Iterator[CanaryRequest]:
    hashed = [
        {
            "identity_type": "email",
            "identity_value": hashlib.new(name, EMAIL.encode()).hexdigest(),
            "identity_format": name,
        }
        for name in ("md5", "sha1", "sha256")
    ]
    crash = [{**CRASH[0], "identity_format": "raw"}]
    for path in ("/v2/requests", "/v1/opengdpr_requests"):
        extension = {"subject_identities": opendsr()["subject_identities"]}
        repeated = opendsr(api_version=EMAIL, extensions={EMAIL: {"customer": NUMBER}})
        for status, options in (
            (201, {"json": repeated}),
            (201, {"json": repeated}),
            (400, {"json": {**repeated, "regulation": "ccpa"}}),
            (400, {"json": opendsr(subject_identities=hashed)}),
            (400, {"json": opendsr(subject_identities=None, extensions={"lethe.example": {"email": EMAIL}})}),
            (400, {"json": opendsr(subject_identities=None, extensions={"localhost": {"email": EMAIL}})}),
            (201, {"json": opendsr(subject_identities=None, extensions={"localhost": extension})}),
            (400, {"json": opendsr(subject_request_type="access")}),
            (400, {"json": opendsr(subject_request_type=EMAIL)}),
            (400, {"json": opendsr(subject_request_id=EMAIL)}),
            (400, {"json": opendsr(submitted_time=NUMBER)}),
            (400, {"json": opendsr(status_callback_urls=[f"https://{EMAIL}/"])}),
            (400, {"json": opendsr(subject_identities=[{"identity_type": EMAIL}])}),
            (400, {"content": f'{{"regulation": "{EMAIL}'}),
            (413, {"content": EMAIL.encode() * 40_000}),
            (500, {"json": opendsr(subject_identities=crash)}),
        ):
            yield CanaryRequest(status, C, "POST", path, options)
        yield CanaryRequest(400, C, "GET", f"{path}/{quote(EMAIL)}")
        yield CanaryRequest(400, C, "DELETE", f"{path}/{quote(NUMBER)}")
        yield CanaryRequest(404, C, "GET", f"{path[:3]}/{quote(EMAIL)}")


def _registrations() -> Iterator[CanaryRequest]:
    manifest, rows = json.loads(samples.parts()["manifest"]), samples.points()
    email_bytes = np.frombuffer(EMAIL.encode() * len(rows), np.uint8).reshape(len(rows), -1)
    for changes in (
        {"subjects": json.dumps(PEOPLE)},
        {"subjects": json.dumps([{**PEOPLE[0], EMAIL: 1}])},
        {"subjects": json.dumps([{"identity_type": EMAIL, "identity_value": EMAIL}])},
        {"subjects": f'["{EMAIL}'},
        {"manifest": json.dumps({**manifest, EMAIL: 1})},
        {"manifest": json.dumps({**manifest, "family": EMAIL})},
        {"manifest": json.dumps({**manifest, "config": {EMAIL: EMAIL}})},
        {"records": EMAIL},
        {"records": save({"x": rows, EMAIL: rows})},
        {"records": save({"x": rows, "name": email_bytes})},
        {"records": save({EMAIL: rows * np.nan})},
        {"posterior": save({EMAIL: rows})},
        {"posterior": _with_metadata(samples.posterior(rows))},
        {"never_seen": save({"x": rows, EMAIL: rows})},
    ):
        parts = {name: part if isinstance(part, bytes) else part.encode() for name, part in changes.items()}
        yield CanaryRequest(422, E, "POST", MODELS, {"files": _parts(**parts)})
    yield CanaryRequest(422, E, "POST", MODELS, {"files": {EMAIL: (EMAIL, b"")}})
    yield CanaryRequest(500, E, "POST", MODELS, {"files": _parts(subjects=json.dumps(CRASH * len(rows)).encode())})
    location = {"posterior": EMAIL, "records": quote(EMAIL), "subjects": f"{NUMBER}.json"}
    yield CanaryRequest(422, E, "POST", f"{MODELS}/import", {"json": {"manifest": manifest, "location": location}})


def _other_requests(model_id: str) -> Iterator[CanaryRequest]:
    artifact = f"{MODELS}/{model_id}/artifact"
    yield CanaryRequest(
        200, E, "GET", artifact, {"headers": {"Range": EMAIL, "If-None-Match": EMAIL, "If-Range": NUMBER}}
    )
    yield CanaryRequest(422, E, "PUT", f"{MODELS}/{model_id}/policy", {"json": {"epsilon": EMAIL, EMAIL: 1}})
    yield CanaryRequest(
        422, P, "POST", f"{DELETIONS}/{UNKNOWN}/extension", {"json": {"until": EMAIL, "reason": "late", EMAIL: 1}}
    )
    for role, path, name in (
        (C, DELETIONS, "cursor"),
        (C, DELETIONS, "status"),
        (C, DELETIONS, EMAIL),
        (C, f"{DELETIONS}.csv", "model"),
        (A, "/api/v1/audit/bounds", "level"),
        (A, "/api/v1/audit/bounds", "cursor"),
        (A, "/api/v1/audit/summaries", "before"),
        (P, "/api/v1/jobs", "status"),
        (P, "/api/v1/callbacks", "status"),
        (E, MODELS, "cursor"),
    ):
        yield CanaryRequest(422, role, "GET", path, {"params": {name: EMAIL}})
    for path in (DELETIONS, MODELS, "/api/v1/jobs", "/api/v1/certificates"):
        yield CanaryRequest(422, E if path == MODELS else A, "GET", f"{path}/{quote(EMAIL)}")
    for path in (f"/{quote(EMAIL)}", f"/api/v1/{quote(NUMBER)}", f"/healthz/?who={quote(EMAIL)}"):
        yield CanaryRequest(404, None, "GET", path)
    yield CanaryRequest(401, None, "POST", "/healthz", {"json": native(), "params": {"who": EMAIL}})
    yield CanaryRequest(422, None, "GET", "/healthz", {"params": {"who": EMAIL}})


def _parts(**changes: bytes) -> dict[str, tuple[str, bytes]]:
    """Return the parts of a registration whose first subjects are the canaries; file names contain one too."""
    rows = len(samples.points())
    others = [samples.person(row // samples.ROWS_EACH) for row in range(len(PEOPLE), rows)]
    parts = samples.parts(**{"subjects": json.dumps([*PEOPLE, *others]).encode(), **changes})
    return {name: (f"{EMAIL}.bin", content) for name, content in parts.items()}


def _with_metadata(tensors: bytes) -> bytes:
    size = int.from_bytes(tensors[:8], "little")
    header = {"__metadata__": {"author": EMAIL}, **json.loads(tensors[8 : 8 + size])}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors[8 + size :]
