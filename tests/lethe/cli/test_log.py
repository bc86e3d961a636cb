"""`lethe log mirror` and `lethe log audit` against a real API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from lethe.cli.main import app
from service.settings import Settings
from service.store.database import Database
from service.store.log import sequencing
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from service.store.states import Role
from service.store.tables import AuditEntry
from tests import samples
from tests.service.conftest import Api, api  # noqa: F401

RUN = CliRunner()


@pytest.fixture
def signer(settings: Settings, database: Database) -> StatementSigner:
    signer = open_signer(settings, database)
    grow_log(settings, database, signer)
    return signer


def grow_log(settings: Settings, database: Database, signer: StatementSigner) -> None:
    samples.request_deletion(settings, database, 99)
    with database.writing() as session:
        assert sequencing.sequence_entries(session, signer)


def audit(source: object, *options: str) -> tuple[int, str]:
    result = RUN.invoke(app, ["log", "audit", str(source), *options])
    return result.exit_code, result.stdout


def test_a_mirror_grows_and_detects_a_rewritten_log(
    api: Api,  # noqa: F811
    settings: Settings,
    database: Database,
    signer: StatementSigner,
    tmp_path: Path,
) -> None:
    options, folder = ["--url", api.url, "--token", api.tokens[Role.AUDITOR]], tmp_path / "mirror"
    assert RUN.invoke(app, ["log", "mirror", str(folder), *options]).exit_code == 0
    before = len((folder / "entries.ndjson").read_bytes().splitlines())
    grow_log(settings, database, signer)
    assert RUN.invoke(app, ["log", "mirror", str(folder), *options]).exit_code == 0
    assert len((folder / "entries.ndjson").read_bytes().splitlines()) == before + 3
    assert len(list((folder / "checkpoints").iterdir())) == 2
    code, output = audit(folder)
    assert (code, "match all 2 signed checkpoints" in output) == (0, True)
    code, output = audit(api.url, "--token", api.tokens[Role.AUDITOR], "--json")
    assert (code, json.loads(output[output.index("{\n") :])["entries"]) == (0, before + 3)

    with database.writing() as session:
        session.execute(update(AuditEntry).where(AuditEntry.leaf_index == 1).values(actor="somebody else"))
    code, output = audit(api.url, "--token", api.tokens[Role.AUDITOR])
    assert (code, "rewritten" in output) == (1, True)
    checkpoint = folder / "checkpoints" / f"{before}.txt"
    code, output = audit(api.url, "--token", api.tokens[Role.AUDITOR], "--checkpoint", str(checkpoint))
    assert (code, f"first {before} entries do not match the checkpoint" in " ".join(output.split())) == (1, True)


def test_an_unreadable_mirror_exits_with_2(tmp_path: Path) -> None:
    code, output = audit(tmp_path / "nothing")
    assert (code, "cannot read" in output) == (2, True)


def test_the_entries_are_for_auditors(api: Api, signer: StatementSigner, tmp_path: Path) -> None:  # noqa: F811
    refused = RUN.invoke(
        app, ["log", "mirror", str(tmp_path), "--url", api.url, "--token", api.tokens[Role.COMPLIANCE]]
    )
    assert refused.exit_code == 2
    assert "403" in refused.stderr
