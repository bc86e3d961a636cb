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
        "from lethe.cli.main import main; sys.argv = ['lethe', 'verify', '--help']; main()",
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


def test_public_names_exist() -> None:
    assert {"Client", "LetheError"} == set(lethe.__all__)
    assert all(hasattr(lethe, name) for name in lethe.__all__)
