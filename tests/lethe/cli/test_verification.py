from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lethe.cli.main import app
from service.settings import new_key
from service.store.certificates.statements import sign_receipt
from service.store.deletions.views import DeletionView
from service.store.signing.statements import StatementSigner
from service.store.tables import Deletion, now

RUN = CliRunner()


@pytest.fixture
def receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid receipt, in the working directory beside the public key that verifies it."""
    monkeypatch.chdir(tmp_path)
    signer = StatementSigner(*(base64.b64decode(new_key()) for _ in range(2)))
    deletion = Deletion(id=uuid.uuid4(), caller="acme", regulation="gdpr", received_at=now())
    (tmp_path / "key.pem").write_text(signer.public_pem)
    path = tmp_path / "receipt.json"
    path.write_text(sign_receipt(signer, DeletionView(deletion, [], [])))
    return path


def test_verify_reports_by_exit_code_and_json(receipt: Path) -> None:
    valid = RUN.invoke(app, ["verify", "receipt.json", "--key", "key.pem", "--json"])
    assert (valid.exit_code, json.loads(valid.output)["verified"]) == (0, True)
    receipt.write_text(receipt.read_text().replace("a", "b", 1))
    invalid = RUN.invoke(app, ["verify", "receipt.json", "--key", "key.pem", "--json"])
    assert (invalid.exit_code, json.loads(invalid.output)["verified"]) == (1, False)
    assert RUN.invoke(app, ["verify", "nowhere.json", "--key", "key.pem"]).exit_code == 2


def test_verify_prints_each_check_for_people(receipt: Path) -> None:
    lines = RUN.invoke(app, ["verify", "receipt.json", "--key", "key.pem"]).output.splitlines()
    assert lines[0].startswith("✓ ")
    assert lines[-1] == "verified"
    receipt.write_text("{}")
    assert RUN.invoke(app, ["verify", "receipt.json", "--key", "key.pem"]).output.startswith("rejected: ")


@pytest.mark.usefixtures("receipt")
def test_verifier_writes_the_archive_and_prints_how_to_run_it() -> None:
    written = RUN.invoke(app, ["verifier", "check.pyz"])
    assert (written.exit_code, written.output) == (0, "python check.pyz CERTIFICATE --key KEYS\n")
    assert Path("check.pyz").stat().st_size > 0
