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
from tests import bundles

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


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid certificate, in the working directory beside the public keys that verify it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.pem").write_text(bundles.SIGNER.public_pem)
    path = tmp_path / "certificate.json"
    path.write_bytes(bundles.certificate())
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = RUN.invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_verify_reports_by_exit_code_and_json(certificate: Path) -> None:
    code, output = run("certificate.json", "--key", "key.pem", "--json")
    assert (code, json.loads(output)["outcome"]) == (0, "verified")
    certificate.write_text(certificate.read_text().replace("a", "b", 1))
    code, output = run("certificate.json", "--key", "key.pem", "--json")
    assert (code, json.loads(output)["verified"]) == (1, False)


@pytest.mark.usefixtures("receipt")
def test_a_receipt_that_is_not_in_the_log_yet_ends_with_3() -> None:
    code, output = run("receipt.json", "--key", "key.pem", "--json")
    assert (code, json.loads(output)["outcome"], json.loads(output)["kind"]) == (3, "unconfirmed", "receipt")
    lines = run("receipt.json", "--key", "key.pem")[1].splitlines()
    assert lines[0].startswith("✓ ")
    assert lines[-1].startswith("not verified yet: its entry in the log is promised within 2 seconds of receipt")


@pytest.mark.usefixtures("certificate")
@pytest.mark.parametrize("option", ["--posterior", "--later"])
def test_a_file_that_cannot_be_read_ends_with_2_and_one_line(option: str) -> None:
    for arguments in (
        ["nowhere.json", "--key", "key.pem"],
        [".", "--key", "key.pem"],
        ["certificate.json", "--key", "n"],
    ):
        code, output = run(*arguments)
        assert (code, output.count("\n")) == (2, 1)
    code, output = run("certificate.json", "--key", "key.pem", option, "nowhere")
    assert (code, output) == (2, "not read: cannot read nowhere: No such file or directory\n")


def test_verify_prints_each_check_for_people(certificate: Path) -> None:
    lines = run("certificate.json", "--key", "key.pem")[1].splitlines()
    assert lines[0].startswith("✓ ")
    assert lines[-1] == "verified"
    certificate.write_text("{}")
    assert run("certificate.json", "--key", "key.pem")[1].startswith("rejected: ")


@pytest.mark.usefixtures("certificate")
def test_the_name_of_the_log_can_be_given() -> None:
    assert run("certificate.json", "--key", "key.pem", "--origin", "localhost/lethe")[0] == 0
    assert run("certificate.json", "--key", "key.pem", "--origin", "elsewhere")[0] == 1


def test_signed_text_does_not_reach_the_terminal_as_markup_or_control_characters(certificate: Path) -> None:
    text = "[/bold] \x1b[2K\rverified"
    certificate.write_bytes(bundles.certificate(lambda content: content.update(not_proved=[text])))
    code, output = run("certificate.json", "--key", "key.pem")
    assert code == 0
    assert "[/bold] \ufffd[2K\ufffdverified" in output
    certificate.write_bytes(bundles.certificate(lambda content: content["bound"].update(level=text)))
    assert run("certificate.json", "--key", "key.pem")[0] == 1


@pytest.mark.usefixtures("certificate")
def test_verifier_writes_the_archive_and_prints_how_to_run_it() -> None:
    written = RUN.invoke(app, ["verifier", "check.pyz"])
    assert (written.exit_code, written.output) == (0, "python check.pyz CERTIFICATE --key KEYS\n")
    assert Path("check.pyz").stat().st_size > 0
