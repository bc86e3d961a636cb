"""Rules that a linter cannot see: what a fresh interpreter really loads, and what the packages promise."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lethe


@pytest.mark.parametrize(
    "statement",
    [
        "import service",
        "import service.app",
        "import lethe",
        "import lethe.verify",
        "import worker.sweep",
        "from lethe.cli import main; sys.argv = ['lethe', 'verify', '--help']; main()",
    ],
)
def test_does_not_import_torch(statement: str) -> None:
    script = f"""
import sys, atexit
atexit.register(lambda: print("HEAVY", sorted({{"torch", "ml", "matplotlib"}} & set(sys.modules))))
{statement}
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "HEAVY []"


def test_the_verifier_needs_only_cryptography() -> None:
    script = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("alone", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["alone"] = module
before = set(sys.modules)
spec.loader.exec_module(module)
outside = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(sorted(name for name in outside if not name.startswith("_")))
"""
    command = [sys.executable, "-c", script, lethe.__path__[0] + "/verify.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() in ("['cryptography']", "['cffi', 'cryptography']")


def test_public_names_exist() -> None:
    assert {"Client", "LetheError"} == set(lethe.__all__)
    assert all(hasattr(lethe, name) for name in lethe.__all__)
