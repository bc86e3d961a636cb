"""The stand-alone file that an auditor gets, run by a Python with only `cryptography`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lethe.verifier_archive import write_verifier
from lethe.verify.__main__ import main
from tests.bundles import POSTERIOR, SIGNER, certificate


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "certificate.json").write_bytes(certificate())
    (tmp_path / "key.pem").write_text(SIGNER.public_pem)
    (tmp_path / "model").write_bytes(POSTERIOR)
    write_verifier(tmp_path / "lethe-verify.pyz")
    return tmp_path


def run(files: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Isolated from our packages: nothing but the file itself and what is installed."""
    command = [sys.executable, "-I", "lethe-verify.pyz", *arguments]
    return subprocess.run(command, cwd=files, text=True, capture_output=True, check=False)


def test_the_file_alone_verifies(files: Path) -> None:
    completed = run(files, "certificate.json", "--key", "key.pem", "--posterior", "model")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[-1] == "verified"
    assert completed.stdout.startswith("ok  the file is a Lethe bundle")


def test_it_loads_nothing_but_cryptography(files: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, 'lethe-verify.pyz'); import lethe_verify.__main__;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.extend({sys.path!r}); {script}"]
    completed = subprocess.run(command, cwd=files, text=True, capture_output=True, check=True)
    assert set(json.loads(completed.stdout.replace("'", '"'))) <= {
        "__main__",
        "_cffi_backend",
        "_openssl",
        "cryptography",
        "lethe_verify",
    }


def test_the_same_sources_make_the_same_file(files: Path, tmp_path: Path) -> None:
    write_verifier(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == (files / "lethe-verify.pyz").read_bytes()


def test_what_does_not_hold_ends_with_1_and_the_reason(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "model").write_bytes(b"another")
    arguments = [str(files / "certificate.json"), "--key", str(files / "key.pem"), "--posterior", str(files / "model")]
    assert main(arguments) == 1
    assert capsys.readouterr().out == "rejected: the model file is not the version that the certificate names\n"
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_a_file_that_is_not_there_ends_with_2(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(files / "nothing.json"), "--key", str(files / "key.pem")]) == 2
    assert "cannot read" in capsys.readouterr().out


def test_machines_get_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(files / "certificate.json"), "--key", str(files / "key.pem"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verified"], result["kind"], result["predicate"]["deletion"]) == (True, "certificate", "d-1")
