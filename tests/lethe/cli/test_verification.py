from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lethe.cli.main import app
from service.settings import new_key
from service.store.signing.statements import RECEIPT_TYPE, StatementSigner, bundle

RUN = CliRunner()


@pytest.fixture
def receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid receipt, in the working directory beside the public key that verifies it."""
    monkeypatch.chdir(tmp_path)
    signer = StatementSigner(base64.b64decode(new_key()))
    content = {"deletion": "d-1", "subjects": [], "received_at": "2026-11-16T08:00:00Z"}
    subject = {"name": "d", "digest": {"sha256": hashlib.sha256(b"").hexdigest()}}
    (tmp_path / "key.pem").write_text(signer.public_pem)
    path = tmp_path / "receipt.json"
    path.write_text(bundle(signer.sign(RECEIPT_TYPE, [subject], content)))
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
