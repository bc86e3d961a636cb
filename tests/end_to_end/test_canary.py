"""No identity is stored anywhere in Lethe: neither while deletions wait, nor after they have completed or failed.

tests/service/test_canary.py tests the API alone, also on PostgreSQL.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from service.settings.broker_socket import broker_socket
from service.store.database import Database
from service.store.states import Role
from tests.canaries import CANARIES, CRASHING, find_leaks, redis_contents, table_contents
from tests.canary_requests import (
    DELETIONS,
    PEOPLE,
    CanaryRequest,
    all_requests,
    native,
    opendsr,
    register,
    response_bytes,
)
from tests.end_to_end.conftest import Running, embedded_environment, starting
from tests.receiver import Receiver, run_receiver
from tests.service.conftest import Api
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

C, P, A, E = Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR, Role.ENGINEER
FAULT = f"""
from service.store.access.identities import IdentityHasher
original = IdentityHasher.lookup
def lookup(hasher, identity):
    if identity.value == {CRASHING!r}:
        raise ValueError(f"cannot hash {{identity.value!r}}")
    return original(hasher, identity)
IdentityHasher.lookup = lookup
"""
"""A `sitecustomize` module, which Python imports first, that makes the real process crash on one identity."""


@dataclass(frozen=True)
class Deployment:
    up: Running
    api: Api
    printed: Path
    """Output of `lethe up` itself."""

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield everything that is stored now: every file, every row, every key of Redis."""
        yield "printed", self.printed.read_bytes()
        for path in self.up.data_dir.rglob("*"):
            if path.is_file():
                yield str(path.relative_to(self.up.data_dir)), path.read_bytes()
        database = Database(f"sqlite:///{self.up.data_dir / 'lethe.db'}")
        yield from table_contents(database)
        database.close()
        with redis.Redis(unix_socket_path=str(broker_socket(self.up.data_dir))) as client:
            yield from redis_contents(client)

    def leaks(self) -> dict[str, set[str]]:
        return {source: names for source, content in self.contents() if (names := find_leaks(content))}

    def send(self, request: CanaryRequest) -> dict[str, object]:
        """Return the JSON of a response without leaks."""
        response = request.send(self.api)
        assert not find_leaks(response_bytes(response)), request
        document: dict[str, object] = response.json()
        return document

    def status(self, deletion_id: object) -> object:
        return self.send(CanaryRequest(200, A, "GET", f"{DELETIONS}/{deletion_id}"))["status"]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(FAULT)
    printed = tmp_path / "printed"
    env = {
        **embedded_environment(),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "fault"), *sys.path]),
        "LETHE_CALLBACK_ALLOW": "127.0.0.0/8",
        "LETHE_IMPORT_ROOT": str(tmp_path),
        "LETHE_LOG_LEVEL": "DEBUG",
        "LETHE_MAX_ATTEMPTS": "1",
    }
    with printed.open("wb") as output, starting(tmp_path, env, output) as up:
        tokens = {role: (up.data_dir / "tokens" / f"{role}.token").read_text() for role in Role}
        yield Deployment(up, Api(up.url, tokens), printed)


def test_no_identity_is_stored_before_during_or_after_a_deletion(deployment: Deployment) -> None:
    with run_receiver() as receiver:
        with _paused_worker(deployment.up):
            sound, fragile = register(deployment.api, "sound"), register(deployment.api, "fragile")
            for request in all_requests(sound):
                assert not find_leaks(response_bytes(request.send(deployment.api))), request
            _delete_by_command(deployment.up)
            waiting = _plant(deployment, receiver, sound, fragile)
            assert {deployment.status(deletion_id) for deletion_id in waiting.values()} == {"pending"}
            assert {"lethe.db", "lethe.db-wal", "service.log", "redis b'lethe.cpu'"} <= {
                source for source, _ in deployment.contents()
            }
            assert deployment.leaks() == {}
            for file in (deployment.up.data_dir / "artifacts" / fragile).iterdir():
                file.write_bytes(b"damaged")
        ends = {"native": "completed", "fragile": "failed"}
        wait_until(
            lambda: {name: deployment.status(deletion_id) for name, deletion_id in waiting.items()} == ends,
            "all deletions have ended",
            60,
        )
        wait_until(lambda: len(receiver.received) == 4, "both contracts sent callbacks for start and end")
    _read_everything(deployment, waiting["native"], sound)
    callbacks = [repr(call.headers).encode() + call.body + call.path.encode() for call in receiver.received]
    assert not any(map(find_leaks, callbacks))
    assert deployment.leaks() == {}
    log = deployment.up.log()
    assert {"batch.crashed", "deletion.failed", "deletion.completed"} <= {line["event"] for line in log}
    assert [line["event"] for line in log].count("request.crashed") == 5
    _check_the_search(deployment)


def _plant(deployment: Deployment, receiver: Receiver, sound: str, fragile: str) -> dict[str, object]:
    """Request deletions by both contracts, one of which will fail; return the ids of the native ones by name."""
    urls = [receiver.url()]
    deletions = {
        "native": deployment.send(
            CanaryRequest(201, C, "POST", DELETIONS, {"json": native(models=[sound], callback_urls=urls)})
        ),
        "fragile": deployment.send(CanaryRequest(201, C, "POST", DELETIONS, {"json": native(models=[fragile])})),
    }
    person = {**PEOPLE[0], "identity_format": "raw"}
    body = opendsr(subject_identities=[person], status_callback_urls=urls)
    assert not find_leaks(
        response_bytes(CanaryRequest(201, C, "POST", "/v2/requests", {"json": body}).send(deployment.api))
    )
    wait_until(lambda: _are_binding(deployment), "all deletions are binding, so that one batch takes them")
    return {name: deletion["id"] for name, deletion in deletions.items()}


def _are_binding(deployment: Deployment) -> bool:
    deletions = deployment.api.call(Role.OPERATOR, "GET", DELETIONS).json()["items"]
    times = [datetime.fromisoformat(deletion["binding_at"]) for deletion in deletions if deletion["binding_at"]]
    return all(time <= datetime.now(UTC) for time in times)


def _read_everything(deployment: Deployment, deletion_id: object, model_id: str) -> None:
    """Read every route that serves a finished deletion."""
    deletion = deployment.send(CanaryRequest(200, C, "GET", f"{DELETIONS}/{deletion_id}"))
    certificates = [part["certificate"] for part in deletion["models"]]  # type: ignore[attr-defined]
    assert len(certificates) == 1
    streamed = {"headers": {"Accept": "text/event-stream", "Last-Event-ID": CANARIES["email"]}}
    for role, path, options in (
        (C, certificates[0], {}),
        (C, f"{DELETIONS}/{deletion_id}/events", {}),
        (C, f"{DELETIONS}/{deletion_id}/events", streamed),
        (C, DELETIONS, {}),
        (C, f"{DELETIONS}.csv", {}),
        (P, "/api/v1/jobs", {}),
        (P, "/api/v1/callbacks", {}),
        (A, "/api/v1/audit/bounds", {}),
        (A, "/api/v1/audit/bounds", {"headers": {"Accept": "text/csv"}}),
        (A, "/api/v1/audit/models", {}),
        (A, "/api/v1/audit/summaries", {}),
        (E, f"/api/v1/models/{model_id}", {}),
        (E, f"/api/v1/models/{model_id}/versions", {}),
        (E, f"/api/v1/models/{model_id}/artifact", {}),
        (None, "/api/v1/log/keys", {}),
        (None, "/metrics", {}),
    ):
        response = CanaryRequest(200, role, "GET", path, options).send(deployment.api)
        assert response.content
        assert not find_leaks(response_bytes(response)), path


def _delete_by_command(up: Running) -> None:
    """Delete through standard input: an argument would show in the process list."""
    command = [sys.executable, "-m", "lethe", "delete", "-", "--url", up.url, "--data-dir", str(up.data_dir)]
    lines = "".join(f"{kind}={value}\n" for kind, value in CANARIES.items())
    for options, code in (["--json"], 0), (["--regulation", "lgpd"], 2):
        ended = subprocess.run([*command, *options], input=lines.encode(), capture_output=True, check=False)
        assert ended.returncode == code, ended.stderr
        assert not find_leaks(ended.stdout + ended.stderr)


@contextmanager
def _paused_worker(up: Running) -> Iterator[None]:
    """Suspend the worker, so that deletions stay pending."""
    worker = up.processes()["worker-1"]
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def _check_the_search(deployment: Deployment) -> None:
    """Plant an identity in every store and find it there."""
    email = CANARIES["email"].encode()
    planted = ("artifacts/planted", "service.log", "redis.log")
    for name in planted:
        with (deployment.up.data_dir / name).open("ab") as file:
            file.write(b"\n" + email + b"\n")
    with redis.Redis(unix_socket_path=str(broker_socket(deployment.up.data_dir))) as client:
        client.set("planted", base64.b64encode(email))
    with (deployment.printed).open("ab") as file:
        file.write(email)
    assert set(deployment.leaks()) == {*planted, "redis b'planted'", "printed"}
