from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import cast

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


def test_a_token_expires_after_a_year_unless_told_otherwise() -> None:
    assert RUN.invoke(app, ["migrate"]).exit_code == 0
    issue = ["token", "issue", "--role", "auditor", "--name"]
    for name, *options in (("year",), ("never", "--expires", "never"), ("hours", "--expires", "12h")):
        assert RUN.invoke(app, [*issue, name, *options]).exit_code == 0
    database = Database(load_settings().database)
    with database.reading() as session:
        tokens = {token.caller: token for token in list_tokens(session)}
    database.close()
    lifetimes = {name: token.expires_at and token.expires_at - token.created_at for name, token in tokens.items()}
    assert lifetimes["never"] is None
    for name, expected in (("year", timedelta(days=365)), ("hours", timedelta(hours=12))):
        assert abs(cast(timedelta, lifetimes[name]) - expected) < timedelta(seconds=5)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--expires", "90"], "90d"),
        (["--expires", "0d"], "90d"),
        (["--expires", "1w"], "90d"),
        (["--network", "10.0.0.1/8"], "10.0.0.0/8"),
        (["--network", "example.org"], "10.0.0.0/8"),
        (["--model", "0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f"], "not registered"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options: list[str], hint: str) -> None:
    RUN.invoke(app, ["migrate"])
    refused = RUN.invoke(app, ["token", "issue", "--role", "compliance", "--name", "x", *options])
    assert refused.exit_code == 2
    assert hint in refused.output


def test_the_list_shows_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    RUN.invoke(app, ["migrate"])
    options = ["--network", "10.0.0.0/8", "--network", "2001:db8::/32"]
    assert RUN.invoke(app, ["token", "issue", "--role", "operator", "--name", "ops", *options]).exit_code == 0
    listed = RUN.invoke(app, ["token", "list"]).stdout
    assert "10.0.0.0/8" in listed
    assert "2001:db8::/32" in listed
