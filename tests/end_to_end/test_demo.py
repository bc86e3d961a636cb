from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import embedded_environment


@pytest.mark.slow
def test_the_demo_ends_well_twice_in_a_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lethe", "demo", "--data-dir", str(tmp_path / "demo"), "--subjects", "5"]
    for _ in range(2):
        ended = subprocess.run(
            command, cwd=tmp_path, env=embedded_environment(), capture_output=True, text=True, timeout=150, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "verified offline" in ended.stdout
        assert "level proved" in ended.stdout
    picture = (tmp_path / "demo" / "mixture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    verify = [sys.executable, "-m", "lethe", "verify", "certificate.json", "--key", "lethe-public-key.pem"]
    checked = subprocess.run(verify, cwd=tmp_path / "demo", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert "verified" in checked.stdout
