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
from tests.service.routes.test_bulk import verified_so_far
from tests.worker.conftest import context  # noqa: F401
from worker.context import WorkerContext
from worker.forget import forget_pending

RUN = CliRunner()


@pytest.fixture
def options(api: Api) -> list[str]:  # noqa: F811
    return ["--url", api.url, "--token", api.tokens[Role.COMPLIANCE]]


def parse_output(result: Result) -> dict[str, Any]:
    """Return the printed object; the server, in this process, logs to the same stream."""
    deletion: dict[str, Any] = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    return deletion


def test_from_request_to_verified_certificate(
    options: list[str],
    settings: Settings,
    database: Database,
    context: WorkerContext,  # noqa: F811
    tmp_path: Path,
) -> None:
    model_id = samples.register_sample(settings, database)
    receipt = tmp_path / "receipt.json"
    requested = RUN.invoke(app, ["delete", "email=person-1@example.org", "--receipt", str(receipt), "--json", *options])
    assert requested.exit_code == 0, requested.output
    deletion_id = parse_output(requested)["id"]
    waiting = RUN.invoke(app, ["status", deletion_id, *options])
    assert (waiting.exit_code, "pending" in waiting.stdout) == (0, True)
    early = RUN.invoke(app, ["certificate", "get", deletion_id, "--out", str(tmp_path), *options])
    assert early.exit_code == 2
    assert "none yet" in early.stderr
    forget_pending(context, model_id)
    done = RUN.invoke(app, ["status", deletion_id, "--watch", "--json", *options])
    assert parse_output(done)["status"] == "completed"
    (target,) = parse_output(done)["models"]
    name = f"certificate-{target['certificate'].rpartition('/')[2]}"
    assert RUN.invoke(app, ["certificate", "get", deletion_id, "--out", str(tmp_path), *options]).exit_code == 0
    key = (tmp_path / "lethe-keys.json").read_bytes()
    assert verify((tmp_path / f"{name}.json").read_bytes(), key).kind == "certificate"
    assert verified_so_far(receipt.read_bytes(), key).kind == "receipt"
    printed = RUN.invoke(app, ["certificate", "get", deletion_id, "--out", str(tmp_path), "--as", "pdf", *options])
    assert printed.exit_code == 0, printed.output
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF-")


def test_a_certificate_is_replaced_only_on_request(options: list[str], tmp_path: Path) -> None:
    requested = RUN.invoke(app, ["delete", "-", "--json", *options], input="email=nobody@example.org\n")
    get = ["certificate", "get", parse_output(requested)["id"], "--out", str(tmp_path), *options]
    assert RUN.invoke(app, get).exit_code == 0
    (file,) = tmp_path.glob("absence-*.json")
    file.write_text("mine")
    refused = RUN.invoke(app, get)
    assert (refused.exit_code, file.read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert RUN.invoke(app, [*get, "--force"]).exit_code == 0
    assert file.read_text() != "mine"


def test_identities_may_come_from_standard_input(options: list[str], tmp_path: Path) -> None:
    requested = RUN.invoke(app, ["delete", "-", "--json", *options], input="email=nobody@example.org\n\n")
    assert requested.exit_code == 0, requested.output
    deletion = parse_output(requested)
    assert (deletion["status"], len(deletion["subjects"])) == ("completed", 1)
    assert RUN.invoke(app, ["certificate", "get", deletion["id"], "--out", str(tmp_path), *options]).exit_code == 0
    assert (tmp_path / f"absence-{deletion['id']}.json").exists()


def test_errors_do_not_contain_the_identity(options: list[str], tmp_path: Path) -> None:
    for arguments, reason in (
        (["delete", "person-1@example.org", *options], "TYPE=VALUE"),
        (["delete", "email=person-1@example.org", "--regulation", "lgpd", *options], "422"),
        (["status", "00000000-0000-4000-8000-000000000000", *options], "404"),
        (["delete", "email=person-1@example.org", "--data-dir", str(tmp_path), *options[:2]], "LETHE_TOKEN"),
        (["delete", "email=person-1@example.org", "--url", "http://127.0.0.1:1", *options[2:]], "lethe up"),
    ):
        refused = RUN.invoke(app, arguments)
        assert refused.exit_code == 2, refused.output
        assert reason in refused.stderr
        assert "person-1" not in refused.stderr
