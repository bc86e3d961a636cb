"""All of Lethe over real HTTP: `lethe up` in its embedded default, and separate processes on PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load

from lethe import Client
from lethe.verify import Unconfirmed, verify
from service.settings import new_key
from tests import samples
from tests.end_to_end.conftest import Running, free_port, is_ready
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def register(engineer: Client) -> str:
    parts = samples.parts()
    manifest, subjects = json.loads(parts["manifest"]), json.loads(parts["subjects"])
    return str(engineer.register_model(manifest, parts["posterior"], parts["records"], subjects)["id"])


def check_forgotten(
    engineer: Client, compliance: Client, model: str, deletion: dict[str, Any], people: set[int]
) -> None:
    """Check that a deletion completed and verifies, and that the posterior is the closed form on the retained rows."""
    assert deletion["status"] == "completed", deletion
    posterior = engineer.posterior(model)
    certificate = compliance.certificate(deletion["models"][0]["certificate"])
    assert verify(certificate, compliance.keys(), posterior).kind == "certificate"
    retained = [row for row in range(len(samples.points())) if row // samples.ROWS_EACH not in people]
    expected = load(samples.posterior(samples.points()[retained]))
    assert np.allclose(load(posterior)["mean"], expected["mean"], atol=1e-9)


def test_a_deletion_is_traced_by_one_request_id(up: Running) -> None:
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        model = register(engineer)
        receipt = compliance.delete([samples.person(2)])
        with pytest.raises(Unconfirmed, match=r"promised within 2 seconds of receipt|overdue"):
            verify(receipt["receipt"].encode(), compliance.keys())
        deletion = compliance.wait(receipt["id"])
        check_forgotten(engineer, compliance, model, deletion, {2})
    traced = [line["event"] for line in up.log() if line.get("request_id") == receipt["request_id"]]
    assert traced == ["request", "deletion.claimed", "deletion.completed"]
    assert "person-2@example.org" not in (up.data_dir / "service.log").read_text()
    assert b"person-2@example.org" not in (up.data_dir / "lethe.db").read_bytes()
    worker = psutil.Process(up.processes()["worker-1"])
    assert {os.getpgid(process.pid) for process in worker.children()} == {worker.pid}  # the supervisor watches groups
    code, left = up.stop()
    assert (code, left) == (0, [])


def test_killing_the_sweep_during_a_deletion_loses_nothing(up: Running) -> None:
    """The API, the worker and Redis are killed in test_demo.py."""
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        model = register(engineer)
        pids = up.processes()
        receipts = [compliance.delete([samples.person(number)]) for number in (1, 5)]
        os.kill(pids["sweep"], signal.SIGKILL)
        for receipt in receipts:
            deletion = compliance.wait(receipt["id"], timeout=60)
        wait_until(lambda: up.processes()["sweep"] != pids["sweep"], "the sweep was restarted")
        check_forgotten(engineer, compliance, model, deletion, {1, 5})


def test_killing_everything_during_a_batch_loses_nothing(up: Running) -> None:
    """Redis, API and worker die together while the batch runs; the supervisor restarts them."""
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        model = register(engineer)
        compliance.wait(compliance.delete([samples.person(0)])["id"])  # warms the worker up
        receipt = compliance.delete([samples.person(7)])
        wait_until(lambda: compliance.deletion(receipt["id"])["status"] != "pending", "the batch was claimed")
        for name in ("worker-1", "redis", "api"):
            os.kill(up.processes()[name], signal.SIGKILL)
        deletion = compliance.wait(receipt["id"], timeout=60)
        wait_until(up.ready, "the API is back")
        check_forgotten(engineer, compliance, model, deletion, {0, 7})


def check_command_lines(up: Running) -> None:
    """Check that no command line shows a secret: every user of the host can read them."""
    secrets = [
        path.read_text().strip() for folder in ("secrets", "tokens") for path in (up.data_dir / folder).iterdir()
    ]
    family = [psutil.Process(up.process.pid), *psutil.Process(up.process.pid).children(recursive=True)]
    words = " ".join(word for process in family for word in process.cmdline())
    assert len(secrets) >= 7
    assert "sweep" in words
    assert [secret for secret in secrets if secret in words] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_leaves_no_process_behind(up: Running, number: signal.Signals) -> None:
    assert set(up.processes()) == {"redis", "api", "worker-1", "sweep"}
    check_command_lines(up)
    assert up.stop(number) == (0, [])
    assert not (up.data_dir / "processes.json").exists()


def test_a_second_up_on_the_same_folder_is_refused(up: Running) -> None:
    command = [sys.executable, "-m", "lethe", "up", "--data-dir", str(up.data_dir), "--port", str(free_port())]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert str(up.process.pid) in refused.stderr


def test_a_port_in_use_is_refused_with_what_to_do(up: Running, tmp_path: Path) -> None:
    port = up.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "lethe", "up", "--data-dir", str(tmp_path / "other"), "--port", port]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--port" in refused.stderr


def test_api_and_workers_run_apart_on_postgresql_and_redis(
    migrated_postgresql: str, broker: str, tmp_path: Path
) -> None:
    """As on several hosts: processes that share only the servers, the secrets and the artifacts."""
    port = free_port()
    env = {
        **os.environ,
        "DATABASE_URL": migrated_postgresql,
        "REDIS_URL": broker,
        "LETHE_IDENTITY_KEY": new_key(),
        "LETHE_SIGNING_KEY": new_key(),
        "LETHE_LOG_KEY": new_key(),
        "LETHE_DATA_DIR": str(tmp_path / "shared"),
    }
    lethe = [sys.executable, "-m", "lethe"]
    subprocess.run([*lethe, "migrate"], env=env, check=True, capture_output=True)
    tokens = {
        role: subprocess.run(
            [*lethe, "token", "issue", "--role", role, "--name", "acme"], env=env, check=True, capture_output=True
        )
        .stdout.decode()
        .strip()
        for role in ("engineer", "compliance")
    }
    parts = [["api", "--port", str(port)], ["worker"], ["worker"], ["sweep"]]
    with running([[*lethe, *part] for part in parts], env, tmp_path / "parts.log"):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(url), "the API is ready", timeout=60)
        with Client(url, tokens["engineer"]) as engineer, Client(url, tokens["compliance"]) as compliance:
            model = register(engineer)
            deletion = compliance.wait(compliance.delete([samples.person(3)])["id"])
            check_forgotten(engineer, compliance, model, deletion, {3})


@contextmanager
def running(commands: Sequence[Sequence[str]], env: dict[str, str], log_file: Path) -> Iterator[None]:
    with log_file.open("wb") as log:
        processes = [subprocess.Popen(command, env=env, stdout=log, stderr=log) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)
