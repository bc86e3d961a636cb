"""Rules that a linter cannot check: what an interpreter loads, public names, and a test for each module."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lethe
from tests.deployments import ROOT

PACKAGES = ("benchmarks", "lethe", "ml", "service", "vocabulary", "worker")


@pytest.mark.parametrize(
    "statement",
    [
        "import service",
        "import service.app",
        "import lethe",
        "import lethe.verify",
        "import worker.sweep",
        "from lethe.cli.main import main; sys.argv = ['lethe', 'verify', '--help']; main()",
    ],
)
def test_does_not_import_torch(statement: str) -> None:
    script = f"""
import sys, atexit
atexit.register(lambda: print("HEAVY", sorted({{"torch", "ml", "matplotlib"}} & set(sys.modules))))
{statement}
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_the_verifier_brings_no_http_client_into_the_store() -> None:
    """`service.store.certificates.verification` is the one module of the service that imports `lethe`."""
    script = "import sys, service.store.batches.publication; print({'httpx', 'lethe.client'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
    sources = [path for path in (ROOT / "service").rglob("*.py") if "from lethe" in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in sources] == ["service/store/certificates/verification.py"]


def test_public_names_exist() -> None:
    assert {"Client", "LetheError"} == set(lethe.__all__)
    assert all(hasattr(lethe, name) for name in lethe.__all__)


def test_every_module_has_a_test_of_its_name() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.stem[0] != "_"]
    paths = [path.relative_to(ROOT) for path in modules]
    missing = [str(path) for path in paths if not (ROOT / "tests" / path.parent / f"test_{path.name}").exists()]
    assert missing == []
