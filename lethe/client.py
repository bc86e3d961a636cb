"""A small typed client for the API: what the demo and the tests use, and what you may use."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

TERMINAL = ("completed", "failed", "cancelled")
POLL_SECONDS = 0.2


class LetheError(Exception):
    """The service refused; `problem` is its RFC 9457 answer."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(
            f"{status} {problem.get('title', '')}: {problem.get('detail', '')} {problem.get('errors', '')}"
        )
        self.status = status
        self.problem = problem


class Client:
    """One token, one role. Use several clients for several roles.

    A service that is away (no connection, or 503) is tried again for `patience` seconds, whenever repeating the
    request is safe: it only reads, or it carries an idempotency key.
    """

    def __init__(self, base_url: str, token: str, timeout: float = 30.0, patience: float = 30.0) -> None:
        self._http = httpx.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, timeout=timeout)
        self._patience = patience

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def register_model(
        self, manifest: Mapping[str, Any], posterior: bytes, records: bytes, subjects: Sequence[Mapping[str, str]]
    ) -> dict[str, Any]:
        """Register a model; `subjects` says whose each row of `records` is."""
        files = {
            "manifest": json.dumps(dict(manifest)).encode(),
            "posterior": posterior,
            "records": records,
            "subjects": json.dumps([dict(subject) for subject in subjects]).encode(),
        }
        return self._json("POST", "/api/v1/models", files=files)

    def model(self, model_id: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1/models/{model_id}")

    def posterior(self, model_id: str) -> bytes:
        """The current posterior, as safetensors."""
        return self._send("GET", f"/api/v1/models/{model_id}/artifact").content

    def delete(
        self,
        subjects: Sequence[Mapping[str, str]],
        models: Sequence[str] | None = None,
        regulation: str = "gdpr",
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """Ask for a deletion; returns the receipt. Sending it again with the same key is harmless."""
        body: dict[str, Any] = {"regulation": regulation, "subjects": [dict(subject) for subject in subjects]}
        if models is not None:
            body["models"] = list(models)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._json("POST", "/api/v1/deletions", json=body, headers=headers)

    def deletion(self, deletion_id: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1/deletions/{deletion_id}")

    def wait(self, deletion_id: str, timeout: float = 120.0) -> dict[str, Any]:
        """Poll until the deletion has ended."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.deletion(deletion_id)
            if found["status"] in TERMINAL:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"deletion {deletion_id} is still {found['status']} after {timeout:.0f} s")
            time.sleep(POLL_SECONDS)

    def certificate(self, path: str) -> bytes:
        """Download a certificate by the path that a deletion names."""
        return self._send("GET", path).content

    def public_key(self) -> bytes:
        """The key to verify with, as PEM. Publish it where an auditor trusts it more than this service."""
        keys = self._json("GET", "/api/v1/log/keys")["keys"]
        pem: str = keys[0]["public_key_pem"]
        return pem.encode()

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._send(method, path, **options).json()
        return answer

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        repeatable = method == "GET" or "Idempotency-Key" in options.get("headers", {})
        deadline = time.monotonic() + (self._patience if repeatable else 0.0)
        while True:
            try:
                return self._try(method, path, **options)
            except (httpx.TransportError, LetheError) as error:
                away = isinstance(error, httpx.TransportError) or error.status == 503
                if not away or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _try(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = self._http.request(method, path, **options)
        if response.is_error:
            is_problem = response.headers.get("content-type", "").startswith("application/problem+json")
            raise LetheError(response.status_code, response.json() if is_problem else {"title": response.reason_phrase})
        return response
