from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lethe.cli.main import app
from service.settings import load_settings
from service.store.access.tokens import find_caller, list_tokens
from service.store.database import Database

RUN = CliRunner()
pytestmark = pytest.mark.usefixtures("embedded")


def test_a_token_is_shown_once_stored_hashed_and_can_be_revoked() -> None:
    assert RUN.invoke(app, ["migrate"]).exit_code == 0
    secret = RUN.invoke(app, ["token", "issue", "--role", "operator", "--name", "ops"]).stdout.strip()
    assert secret.startswith("lethe_operator_")
    database = Database(load_settings().database)
    with database.reading() as session:
        token = next(token for token in list_tokens(session) if token.caller == "ops")
        assert find_caller(session, secret) is not None
    assert secret.encode() not in b"".join(path.read_bytes() for path in Path(".lethe").glob("lethe.db*"))
    assert str(token.id) in RUN.invoke(app, ["token", "list"]).stdout
    assert RUN.invoke(app, ["token", "revoke", str(token.id)]).exit_code == 0
    with database.reading() as session:
        assert find_caller(session, secret) is None
    assert RUN.invoke(app, ["token", "revoke", str(token.id)]).exit_code == 2
    database.close()


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    refused = RUN.invoke(app, ["token", "issue", "--role", "king", "--name", "x"])
    assert refused.exit_code == 2
    assert "auditor" in refused.output
