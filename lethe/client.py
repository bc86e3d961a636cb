"""A small typed client for the API: what the demo and the tests use, and what you may use."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx

TERMINAL = ("completed", "failed", "cancelled")
POLL_SECONDS = 0.2
KEYS = "lethe-keys.json"

Content = bytes | IO[bytes]


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
        self,
        manifest: Mapping[str, Any],
        posterior: Content,
        records: Content,
        subjects: Sequence[Mapping[str, str]],
        never_seen: Content | None = None,
    ) -> dict[str, Any]:
        """Register a model; `subjects` says whose each row of `records` is. Open files are sent piece by piece."""
        files: dict[str, Content] = {
            "manifest": json.dumps(dict(manifest)).encode(),
            "posterior": posterior,
            "records": records,
            "subjects": json.dumps([dict(subject) for subject in subjects]).encode(),
        }
        if never_seen is not None:
            files["never_seen"] = never_seen
        return self._json("POST", "/api/v1/models", files=files)

    def import_model(self, manifest: Mapping[str, Any], location: Mapping[str, str]) -> dict[str, Any]:
        """Register a model whose files lie on the server: `location` names them, relative to its import root."""
        body = {"manifest": dict(manifest), "location": dict(location)}
        return self._json("POST", "/api/v1/models/import", json=body)

    def model(self, model_id: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1/models/{model_id}")

    def readiness(self, model_id: str, timeout: float = 60.0) -> dict[str, Any]:
        """What can be certified of the current version; waits until a worker has looked at it."""
        found = _poll(
            lambda: self.model(model_id), lambda model: model["readiness"] is not None, timeout, f"model {model_id}"
        )
        readiness: dict[str, Any] = found["readiness"]
        return readiness

    def posterior(self, model_id: str) -> bytes:
        """The current posterior, as safetensors."""
        return self._send("GET", f"/api/v1/models/{model_id}/artifact").content

    def delete(
        self,
        subjects: Sequence[Mapping[str, str]] = (),
        models: Sequence[str] | None = None,
        regulation: str = "gdpr",
        idempotency_key: str | None = None,
        records: Sequence[Mapping[str, Any]] = (),
        callback_urls: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Ask for a deletion, of people or of single records; returns the receipt.

        Sending it again with the same key is harmless.
        """
        named = {"subjects": subjects, "records": records, "callback_urls": callback_urls}
        body: dict[str, Any] = {
            "regulation": regulation,
            **{name: list(given) for name, given in named.items() if given},
        }
        if models is not None:
            body["models"] = list(models)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._json("POST", "/api/v1/deletions", json=body, headers=headers)

    def delete_many(
        self, requests: Sequence[Mapping[str, Any]], idempotency_key: str | None = None
    ) -> list[dict[str, Any]]:
        """Up to 10,000 deletions at once, each as the API takes it; for each, in order, a receipt or what was wrong."""
        headers = {
            "Idempotency-Key": idempotency_key or str(uuid.uuid4()),
            "Content-Type": "application/x-ndjson",
        }
        content = "".join(f"{json.dumps(dict(request))}\n" for request in requests)
        answer = self._send("POST", "/api/v1/deletions/bulk", content=content, headers=headers)
        return [json.loads(line) for line in answer.text.splitlines()]

    def deletion(self, deletion_id: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1/deletions/{deletion_id}")

    def wait(
        self, deletion_id: str, timeout: float = 120.0, on_progress: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Poll until the deletion has ended. `on_progress` is told of it each time: `models` has phase and percent."""

        def look() -> dict[str, Any]:
            found = self.deletion(deletion_id)
            if on_progress is not None:
                on_progress(found)
            return found

        return _poll(look, lambda found: found["status"] in TERMINAL, timeout, f"deletion {deletion_id}")

    def certificate(self, path: str, form: str = "json") -> bytes:
        """Download a certificate by the path that a deletion names: the bundle, or `pdf` or `html` to read."""
        return self._send("GET", f"{path}.{form}").content

    def download(self, deletion_id: str, folder: Path, form: str = "json") -> list[Path]:
        """Write every certificate of a deletion, and the keys to verify them with, into a folder.

        Returns the certificates' files; none as long as there is none.
        """
        found = self.deletion(deletion_id)
        paths = {f"certificate-{one['model_id']}.{form}": one["certificate"] for one in found["models"]}
        if found["absence"]:
            paths = {f"absence-{deletion_id}.{form}": found["absence"]}
        ready = {folder / name: path for name, path in paths.items() if path}
        if ready:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / KEYS).write_bytes(self.keys())
        for file, path in ready.items():
            file.write_bytes(self.certificate(path, form))
        return list(ready)

    def keys(self) -> bytes:
        """The list of keys to verify with. Keep it where an auditor trusts it more than this service."""
        return self._send("GET", "/api/v1/log/keys").content

    def checkpoint(self) -> str:
        """The newest checkpoint of the log. Keep it: nobody can rewrite the log behind it unnoticed."""
        return self._send("GET", "/api/v1/log/checkpoint").text

    def log_entries(self, start: int, count: int) -> list[bytes]:
        """Entries of the log, as they were hashed."""
        params = {"start": start, "count": count}
        return self._send("GET", "/api/v1/log/entries", params=params).content.splitlines()

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


def _poll(
    look: Callable[[], dict[str, Any]], done: Callable[[dict[str, Any]], bool], timeout: float, what: str
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if done(found):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} is still {found.get('status', 'unchecked')} after {timeout:.0f} s")
        time.sleep(POLL_SECONDS)
