"""Identities planted in the whole of Lethe: nowhere while deletions wait, nowhere when they are done or have failed.

tests/service/test_canary.py does the same for the API alone, on PostgreSQL too.
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
from pathlib import Path

import pytest
import redis

from service.settings.broker_socket import broker_socket
from service.store.database import Database
from service.store.states import Role
from tests.canaries import CANARIES, CRASHING, leaks, redis_contents, table_contents
from tests.canary_doors import DELETIONS, PEOPLE, Door, doors, native, opendsr, register, told
from tests.end_to_end.conftest import Running, embedded_environment, starting
from tests.receiver import Receiver, receiving
from tests.service.conftest import Api
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

C, P, A, E = Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR, Role.ENGINEER
FAULT = f"""
from service.store.access.identities import IdentityHasher
sound = IdentityHasher.lookup
def lookup(hasher, identity):
    if identity.value == {CRASHING!r}:
        raise ValueError(f"cannot make anything of {{identity.value!r}}")
    return sound(hasher, identity)
IdentityHasher.lookup = lookup
"""
"""Python runs a module of the name `sitecustomize` before anything else: a door that stumbles, in the real process."""


@dataclass(frozen=True)
class Scene:
    up: Running
    api: Api
    printed: Path
    """What `lethe up` itself prints."""

    def everywhere(self) -> Iterator[tuple[str, bytes]]:
        """All that is kept at this moment: every file, every row, every key of Redis."""
        yield "printed", self.printed.read_bytes()
        for path in self.up.data_dir.rglob("*"):
            if path.is_file():
                yield str(path.relative_to(self.up.data_dir)), path.read_bytes()
        database = Database(f"sqlite:///{self.up.data_dir / 'lethe.db'}")
        yield from table_contents(database)
        database.close()
        with redis.Redis(unix_socket_path=str(broker_socket(self.up.data_dir))) as client:
            yield from redis_contents(client)

    def found(self) -> dict[str, set[str]]:
        return {place: names for place, content in self.everywhere() if (names := leaks(content))}

    def ask(self, door: Door) -> dict[str, object]:
        """An answer without leaks, as JSON."""
        answer = door.send(self.api)
        assert not leaks(told(answer)), door
        facts: dict[str, object] = answer.json()
        return facts

    def status(self, deletion_id: object) -> object:
        return self.ask(Door(200, A, "GET", f"{DELETIONS}/{deletion_id}"))["status"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
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
        yield Scene(up, Api(up.url, tokens), printed)


def test_an_identity_is_nowhere_before_during_and_after(scene: Scene) -> None:
    with receiving() as receiver:
        with _nobody_works(scene.up):
            sound, fragile = register(scene.api, "sound"), register(scene.api, "fragile")
            for door in doors(sound):
                assert not leaks(told(door.send(scene.api))), door
            _delete_by_command(scene.up)
            waiting = _plant(scene, receiver, sound, fragile)
            assert {scene.status(one) for one in waiting.values()} == {"pending"}
            assert {"lethe.db", "lethe.db-wal", "service.log", "redis b'lethe.cpu'"} <= {
                at for at, _ in scene.everywhere()
            }
            assert scene.found() == {}
            for file in (scene.up.data_dir / "artifacts" / fragile).iterdir():
                file.write_bytes(b"damaged")
        ends = {"native": "completed", "fragile": "failed"}
        wait_until(lambda: {name: scene.status(one) for name, one in waiting.items()} == ends, "all have ended", 60)
        wait_until(lambda: len(receiver.received) == 4, "both contracts told of the begin and of the end")
    _read_everything(scene, waiting["native"], sound)
    assert not any(leaks(repr(one.headers).encode() + one.body + one.path.encode()) for one in receiver.received)
    assert scene.found() == {}
    log = scene.up.log()
    assert {"batch.crashed", "deletion.failed", "deletion.completed"} <= {line["event"] for line in log}
    assert [line["event"] for line in log].count("request.crashed") == 5
    _found_if_planted(scene)


def _plant(scene: Scene, receiver: Receiver, sound: str, fragile: str) -> dict[str, object]:
    """Deletions by both contracts that will be done, and one that will fail; by what they are called here."""
    urls = [receiver.url()]
    answers = {
        "native": scene.ask(Door(201, C, "POST", DELETIONS, {"json": native(models=[sound], callback_urls=urls)})),
        "fragile": scene.ask(Door(201, C, "POST", DELETIONS, {"json": native(models=[fragile])})),
    }
    person = {**PEOPLE[0], "identity_format": "raw"}
    asked = opendsr(subject_identities=[person], status_callback_urls=urls)
    assert not leaks(told(Door(201, C, "POST", "/v2/requests", {"json": asked}).send(scene.api)))
    return {name: answer["id"] for name, answer in answers.items()}


def _read_everything(scene: Scene, deletion_id: object, model_id: str) -> None:
    """What people and machines look at afterwards."""
    found = scene.ask(Door(200, C, "GET", f"{DELETIONS}/{deletion_id}"))
    certificates = [part["certificate"] for part in found["models"]]  # type: ignore[attr-defined]
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
        answer = Door(200, role, "GET", path, options).send(scene.api)
        assert answer.content
        assert not leaks(told(answer)), path


def _delete_by_command(up: Running) -> None:
    """Through standard input: an argument would stand in the list of processes."""
    command = [sys.executable, "-m", "lethe", "delete", "-", "--url", up.url, "--data-dir", str(up.data_dir)]
    lines = "".join(f"{kind}={value}\n" for kind, value in CANARIES.items())
    for options, code in (["--json"], 0), (["--regulation", "lgpd"], 2):
        ended = subprocess.run([*command, *options], input=lines.encode(), capture_output=True, check=False)
        assert ended.returncode == code, ended.stderr
        assert not leaks(ended.stdout + ended.stderr)


@contextmanager
def _nobody_works(up: Running) -> Iterator[None]:
    """The worker sleeps, so that deletions wait for as long as they are looked at."""
    worker = up.processes()["worker-1"]
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def _found_if_planted(scene: Scene) -> None:
    email = CANARIES["email"].encode()
    planted = ("artifacts/planted", "service.log", "redis.log")
    for name in planted:
        with (scene.up.data_dir / name).open("ab") as file:
            file.write(b"\n" + email + b"\n")
    with redis.Redis(unix_socket_path=str(broker_socket(scene.up.data_dir))) as client:
        client.set("planted", base64.b64encode(email))
    with (scene.printed).open("ab") as file:
        file.write(email)
    assert set(scene.found()) == {*planted, "redis b'planted'", "printed"}
