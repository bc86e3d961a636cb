from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lethe.cli.main import app
from lethe.local.up import prepare
from service.settings import load_settings, new_key
from service.store.access.tokens import find_caller, list_tokens
from service.store.database import Database
from service.store.signing.statements import RECEIPT_TYPE, StatementSigner, bundle

RUN = CliRunner()
COMMANDS = ("demo", "up", "api", "worker", "sweep", "verify", "migrate", "secrets", "token", "bench", "paper")


@pytest.fixture(autouse=True)
def _embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_help_is_a_tour() -> None:
    shown = RUN.invoke(app, ["--help"]).output
    for word in (
        "demo",
        "up",
        "verify",
        "token",
        "bench",
        "Try it",
        "Run it",
        "Check it",
        "Administer it",
        "DATABASE_URL",
    ):
        assert word in shown


@pytest.mark.parametrize(
    "command", ["demo", "up", "api", "worker", "sweep", "verify", "migrate", "secrets", "token", "bench"]
)
def test_every_command_explains_itself(command: str) -> None:
    shown = RUN.invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) > 5


def test_the_embedded_default_leaves_a_private_token_for_each_role(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "data")
    prepare(settings)
    prepare(settings)
    files = sorted(settings.token_dir.iterdir())
    assert [path.stem for path in files] == ["auditor", "compliance", "engineer", "operator"]
    database = Database(settings.database)
    with database.reading() as session:
        assert len(list_tokens(session)) == 4
        for path in files:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            caller = find_caller(session, path.read_text())
            assert caller is not None
            assert caller.role == path.stem
    database.close()


def test_a_token_is_shown_once_stored_hashed_and_can_be_revoked() -> None:
    assert RUN.invoke(app, ["migrate"]).exit_code == 0
    secret = RUN.invoke(app, ["token", "issue", "--role", "operator", "--name", "ops"]).output.strip()
    assert secret.startswith("lethe_operator_")
    database = Database(load_settings().database)
    with database.reading() as session:
        token = next(token for token in list_tokens(session) if token.caller == "ops")
        assert find_caller(session, secret) is not None
    assert secret.encode() not in Path(".lethe/lethe.db").read_bytes() + Path(".lethe/lethe.db-wal").read_bytes()
    assert str(token.id)[:8] in RUN.invoke(app, ["token", "list"]).output
    assert RUN.invoke(app, ["token", "revoke", str(token.id)]).exit_code == 0
    with database.reading() as session:
        assert find_caller(session, secret) is None
    assert RUN.invoke(app, ["token", "revoke", str(token.id)]).exit_code == 2
    database.close()


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    refused = RUN.invoke(app, ["token", "issue", "--role", "king", "--name", "x"])
    assert refused.exit_code == 2
    assert "auditor" in refused.output


def test_secrets_are_fresh_and_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = RUN.invoke(app, ["secrets"]).output.split()
    for line in lines:
        monkeypatch.setenv(*line.split("=", 1))
    monkeypatch.setenv("DATABASE_URL", "postgresql://db/lethe")
    monkeypatch.setenv("REDIS_URL", "redis://broker/0")
    settings = load_settings()
    assert settings.identity_key_bytes() != settings.signing_key_bytes()


def test_verify_speaks_in_exit_codes_and_json(tmp_path: Path) -> None:
    signer = StatementSigner(base64.b64decode(new_key()))
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    content = {"deletion": "d-1", "subjects": [], "received_at": "2026-11-16T08:00:00Z"}
    receipt = bundle(signer.sign(RECEIPT_TYPE, [{"name": "d", "digest": {"sha256": empty}}], content))
    (tmp_path / "receipt.json").write_text(receipt)
    (tmp_path / "key.pem").write_text(signer.public_pem)
    good = RUN.invoke(app, ["verify", "receipt.json", "--key", "key.pem", "--json"])
    assert (good.exit_code, json.loads(good.output)["verified"]) == (0, True)
    (tmp_path / "receipt.json").write_text(receipt.replace("a", "b", 1))
    bad = RUN.invoke(app, ["verify", "receipt.json", "--key", "key.pem", "--json"])
    assert (bad.exit_code, json.loads(bad.output)["verified"]) == (1, False)
    assert RUN.invoke(app, ["verify", "nowhere.json", "--key", "key.pem"]).exit_code == 2


def test_a_worker_serves_only_queues_that_there_are() -> None:
    refused = RUN.invoke(app, ["worker", "--queues", "lethe.cpu,lethe.tpu"])
    assert refused.exit_code == 2
    assert "choose some of lethe.cpu, lethe.cuda" in refused.output
