"""`lethe delete`, `status` and `certificate get` against a real API, as a script would call them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lethe.cli.main import app
from lethe.verify import verify
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api, api  # noqa: F401
from tests.worker.conftest import context  # noqa: F401
from worker.context import WorkerContext
from worker.forget import forget_pending

RUN = CliRunner()


@pytest.fixture
def at(api: Api) -> list[str]:  # noqa: F811
    return ["--url", api.url, "--token", api.tokens[Role.COMPLIANCE]]


def told(result: Result) -> dict[str, Any]:
    """The answer; the server, in this same process, logs to the same stream."""
    found: dict[str, Any] = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    return found


def test_from_asking_to_a_certificate_that_verifies(
    at: list[str],
    settings: Settings,
    database: Database,
    context: WorkerContext,  # noqa: F811
    tmp_path: Path,
) -> None:
    model_id = samples.register_sample(settings, database)
    receipt = tmp_path / "receipt.json"
    asked = RUN.invoke(app, ["delete", "email=person-1@example.org", "--receipt", str(receipt), "--json", *at])
    assert asked.exit_code == 0, asked.output
    deletion_id = told(asked)["id"]
    waiting = RUN.invoke(app, ["status", deletion_id, *at])
    assert (waiting.exit_code, "pending" in waiting.stdout) == (0, True)
    early = RUN.invoke(app, ["certificate", "get", deletion_id, "--out", str(tmp_path), *at])
    assert early.exit_code == 2
    assert "none yet" in early.stderr
    forget_pending(context, model_id)
    done = RUN.invoke(app, ["status", deletion_id, "--watch", "--json", *at])
    assert told(done)["status"] == "completed"
    assert RUN.invoke(app, ["certificate", "get", deletion_id, "--out", str(tmp_path), *at]).exit_code == 0
    key = (tmp_path / "lethe-keys.json").read_bytes()
    assert verify((tmp_path / f"certificate-{model_id}.json").read_bytes(), key).kind == "certificate"
    assert verify(receipt.read_bytes(), key).kind == "receipt"
    printed = RUN.invoke(app, ["certificate", "get", deletion_id, "--out", str(tmp_path), "--as", "pdf", *at])
    assert printed.exit_code == 0, printed.output
    assert (tmp_path / f"certificate-{model_id}.pdf").read_bytes().startswith(b"%PDF-")


def test_identities_may_come_from_standard_input(at: list[str], tmp_path: Path) -> None:
    asked = RUN.invoke(app, ["delete", "-", "--json", *at], input="email=nobody@example.org\n\n")
    assert asked.exit_code == 0, asked.output
    found = told(asked)
    assert (found["status"], len(found["subjects"])) == ("completed", 1)
    assert RUN.invoke(app, ["certificate", "get", found["id"], "--out", str(tmp_path), *at]).exit_code == 0
    assert (tmp_path / f"absence-{found['id']}.json").exists()


def test_what_is_wrong_is_told_without_the_identity(at: list[str], tmp_path: Path) -> None:
    for arguments, reason in (
        (["delete", "person-1@example.org", *at], "TYPE=VALUE"),
        (["delete", "email=person-1@example.org", "--regulation", "lgpd", *at], "422"),
        (["status", "00000000-0000-4000-8000-000000000000", *at], "404"),
        (["delete", "email=person-1@example.org", "--data-dir", str(tmp_path), *at[:2]], "LETHE_TOKEN"),
        (["delete", "email=person-1@example.org", "--url", "http://127.0.0.1:1", *at[2:]], "lethe up"),
    ):
        refused = RUN.invoke(app, arguments)
        assert refused.exit_code == 2, refused.output
        assert reason in refused.stderr
        assert "person-1" not in refused.stderr
