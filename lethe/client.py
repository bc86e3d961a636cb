"""A small typed client for the API."""

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
REGISTRATION_SECONDS = 600.0
"""Hundreds of megabytes are checked and hashed before the service answers."""

Content = bytes | IO[bytes]


class LetheError(Exception):
    """The service refused the request; `problem` is its RFC 9457 problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(
            f"{status} {problem.get('title', '')}: {problem.get('detail', '')} {problem.get('errors', '')}"
        )
        self.status = status
        self.problem = problem


class Client:
    """A client with one token, and so with one role. Use several clients for several roles.

    If the service is unavailable (no connection, or 503), requests that are safe to repeat, which read or carry an
    idempotency key, are retried for `patience` seconds.
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
        """Register a model; `subjects` has the owner of each row of `records`. Open files are streamed."""
        files: dict[str, Content] = {
            "manifest": json.dumps(dict(manifest)).encode(),
            "posterior": posterior,
            "records": records,
            "subjects": json.dumps([dict(subject) for subject in subjects]).encode(),
        }
        if never_seen is not None:
            files["never_seen"] = never_seen
        return self._json("POST", "/api/v1/models", files=files, timeout=REGISTRATION_SECONDS)

    def import_model(self, manifest: Mapping[str, Any], location: Mapping[str, str]) -> dict[str, Any]:
        """Register a model from files on the server; `location` has their paths relative to its import root."""
        body = {"manifest": dict(manifest), "location": dict(location)}
        return self._json("POST", "/api/v1/models/import", json=body, timeout=REGISTRATION_SECONDS)

    def model(self, model_id: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1/models/{model_id}")

    def readiness(self, model_id: str, timeout: float = 60.0) -> dict[str, Any]:
        """Return the readiness of the current version; waits until a worker has checked it."""
        model = _poll(
            lambda: self.model(model_id), lambda model: model["readiness"] is not None, timeout, f"model {model_id}"
        )
        readiness: dict[str, Any] = model["readiness"]
        return readiness

    def refresh(self, model_id: str) -> dict[str, Any]:
        """Request that an idle worker continues the chains of a sample set; returns the refresh."""
        return self._json("POST", f"/api/v1/models/{model_id}/refresh")

    def posterior(self, model_id: str) -> bytes:
        """Return the current posterior, as safetensors."""
        return self._send("GET", f"/api/v1/models/{model_id}/artifact").content

    def draws(self, model_id: str, count: int, seed: int = 0) -> bytes:
        """Return draws of the current sample set, picked by weight, as safetensors without the weights.

        Hand these to those who serve predictions: the weights of the whole posterior reveal the forgotten rows.
        """
        return self._send("GET", f"/api/v1/models/{model_id}/draws", params={"count": count, "seed": seed}).content

    def delete(
        self,
        subjects: Sequence[Mapping[str, str]] = (),
        models: Sequence[str] | None = None,
        regulation: str = "gdpr",
        idempotency_key: str | None = None,
        records: Sequence[Mapping[str, Any]] = (),
        callback_urls: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Request a deletion of people or of single records; returns the deletion with its receipt.

        Repeating the call with the same idempotency key changes nothing.
        """
        lists = {"subjects": subjects, "records": records, "callback_urls": callback_urls}
        body: dict[str, Any] = {
            "regulation": regulation,
            **{name: list(items) for name, items in lists.items() if items},
        }
        if models is not None:
            body["models"] = list(models)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._json("POST", "/api/v1/deletions", json=body, headers=headers)

    def delete_many(
        self, requests: Sequence[Mapping[str, Any]], idempotency_key: str | None = None
    ) -> list[dict[str, Any]]:
        """Request up to 10,000 deletions; returns a receipt or a problem for each, in order."""
        headers = {
            "Idempotency-Key": idempotency_key or str(uuid.uuid4()),
            "Content-Type": "application/x-ndjson",
        }
        content = "".join(f"{json.dumps(dict(request))}\n" for request in requests)
        response = self._send("POST", "/api/v1/deletions/bulk", content=content, headers=headers)
        return [json.loads(line) for line in response.text.splitlines()]

    def deletion(self, deletion_id: str) -> dict[str, Any]:
        return self._json("GET", f"/api/v1/deletions/{deletion_id}")

    def wait(
        self, deletion_id: str, timeout: float = 120.0, on_progress: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Poll until the deletion has ended. `on_progress` gets each state; its `models` have phase and percent."""

        def fetch() -> dict[str, Any]:
            deletion = self.deletion(deletion_id)
            if on_progress is not None:
                on_progress(deletion)
            return deletion

        return _poll(fetch, lambda deletion: deletion["status"] in TERMINAL, timeout, f"deletion {deletion_id}")

    def certificate(self, path: str, form: str = "json") -> bytes:
        """Download a certificate by its path in the deletion: the `json` bundle, or `pdf` or `html` to read."""
        return self._send("GET", f"{path}.{form}").content

    def download(self, deletion_id: str, folder: Path, form: str = "json", replace: bool = False) -> list[Path]:
        """Write the certificates of a deletion, and the keys that verify them, into a folder.

        Returns the paths of the certificates, an empty list before there are any. Raises FileExistsError for a
        certificate that is there already, unless it is to be replaced; nothing is written then.
        """
        deletion = self.deletion(deletion_id)
        certificates = [model["certificate"] for model in deletion["models"] if model["certificate"]]
        paths = {folder / f"certificate-{path.rpartition('/')[2]}.{form}": path for path in certificates}
        if deletion["absence"]:
            paths = {folder / f"absence-{deletion_id}.{form}": deletion["absence"]}
        for file in paths:
            if file.exists() and not replace:
                raise FileExistsError(f"{file} exists already")
        if paths:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / KEYS).write_bytes(self.keys())
        for file, path in paths.items():
            file.write_bytes(self.certificate(path, form))
        return list(paths)

    def keys(self) -> bytes:
        """Return the list of keys for verification. Keep it where an auditor trusts it more than this service."""
        return self._send("GET", "/api/v1/log/keys").content

    def checkpoint(self) -> str:
        """Return the newest checkpoint of the log. Keep it: it reveals any later rewrite of the log up to it."""
        return self._send("GET", "/api/v1/log/checkpoint").text

    def log_entries(self, start: int, count: int) -> list[bytes]:
        """Return entries of the log, as the bytes that were hashed."""
        params = {"start": start, "count": count}
        return self._send("GET", "/api/v1/log/entries", params=params).content.splitlines()

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        document: dict[str, Any] = self._send(method, path, **options).json()
        return document

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        repeatable = method == "GET" or "Idempotency-Key" in options.get("headers", {})
        deadline = time.monotonic() + (self._patience if repeatable else 0.0)
        while True:
            try:
                return self._try(method, path, **options)
            except (httpx.TransportError, LetheError) as error:
                unavailable = isinstance(error, httpx.TransportError) or error.status == 503
                if not unavailable or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _try(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = self._http.request(method, path, **options)
        if response.is_error:
            is_problem = response.headers.get("content-type", "").startswith("application/problem+json")
            raise LetheError(response.status_code, response.json() if is_problem else {"title": response.reason_phrase})
        return response


def _poll(
    fetch: Callable[[], dict[str, Any]], is_done: Callable[[dict[str, Any]], bool], timeout: float, name: str
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    while True:
        state = fetch()
        if is_done(state):
            return state
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is still {state.get('status', 'unchecked')} after {timeout:.0f} s")
        time.sleep(POLL_SECONDS)
