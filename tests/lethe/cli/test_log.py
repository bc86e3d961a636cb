"""`lethe log mirror` and `lethe log audit` against a real API, as an auditor would use them over the years."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from lethe.cli.main import app
from service.settings import Settings
from service.store.database import Database
from service.store.log import sequencing as log
from service.store.signing.statements import StatementSigner
from service.store.states import Role
from service.store.tables import AuditEntry
from tests import samples
from tests.service.conftest import Api, api  # noqa: F401

RUN = CliRunner()


@pytest.fixture
def grow(settings: Settings, database: Database) -> StatementSigner:
    signer = StatementSigner(settings.signing_key_bytes(), settings.origin)
    ask_and_place(settings, database, signer)
    return signer


def ask_and_place(settings: Settings, database: Database, signer: StatementSigner) -> None:
    samples.ask(settings, database, 99)
    with database.writing() as session:
        assert log.sequence(session, signer)


def audit(place: object, *more: str) -> tuple[int, str]:
    found = RUN.invoke(app, ["log", "audit", str(place), *more])
    return found.exit_code, found.stdout


def test_a_mirror_grows_and_notices_what_was_rewritten_in_between(
    api: Api,  # noqa: F811
    settings: Settings,
    database: Database,
    grow: StatementSigner,
    tmp_path: Path,
) -> None:
    at, folder = ["--url", api.url, "--token", api.tokens[Role.AUDITOR]], tmp_path / "mirror"
    assert RUN.invoke(app, ["log", "mirror", str(folder), *at]).exit_code == 0
    before = len((folder / "entries.ndjson").read_bytes().splitlines())
    ask_and_place(settings, database, grow)
    assert RUN.invoke(app, ["log", "mirror", str(folder), *at]).exit_code == 0
    assert len((folder / "entries.ndjson").read_bytes().splitlines()) == before + 3
    assert len(list((folder / "checkpoints").iterdir())) == 2
    code, told = audit(folder)
    assert (code, "lead to each of 2 signed checkpoints" in told) == (0, True)
    code, told = audit(api.url, "--token", api.tokens[Role.AUDITOR], "--json")
    assert (code, json.loads(told[told.index("{\n") :])["entries"]) == (0, before + 3)

    with database.writing() as session:
        session.execute(update(AuditEntry).where(AuditEntry.leaf_index == 1).values(actor="somebody else"))
    code, told = audit(api.url, "--token", api.tokens[Role.AUDITOR])
    assert (code, "rewritten" in told) == (1, True)
    kept = folder / "checkpoints" / f"{before}.txt"
    code, told = audit(api.url, "--token", api.tokens[Role.AUDITOR], "--checkpoint", str(kept))
    assert (code, f"first {before} entries are not those of the checkpoint" in " ".join(told.split())) == (1, True)


def test_what_cannot_be_read_ends_with_2(tmp_path: Path) -> None:
    code, told = audit(tmp_path / "nothing")
    assert (code, "cannot read" in told) == (2, True)


def test_the_entries_are_for_auditors(api: Api, grow: StatementSigner, tmp_path: Path) -> None:  # noqa: F811
    refused = RUN.invoke(
        app, ["log", "mirror", str(tmp_path), "--url", api.url, "--token", api.tokens[Role.COMPLIANCE]]
    )
    assert refused.exit_code == 2
    assert "403" in refused.stderr
