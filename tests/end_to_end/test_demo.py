from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import embedded_environment
from tests.waiting import wait_until

POSTED = '"route": "/api/v1/deletions", "status": 201'


pytestmark = pytest.mark.slow


def test_the_demo_ends_well_twice_in_a_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lethe", "demo", "--data-dir", str(tmp_path / "demo"), "--subjects", "5"]
    for _ in range(2):
        result = subprocess.run(
            command, cwd=tmp_path, env=embedded_environment(), capture_output=True, text=True, timeout=150, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "verified offline" in result.stdout
        assert "level proved" in result.stdout
    picture = (tmp_path / "demo" / "mixture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    verify = [sys.executable, "-m", "lethe", "verify", "certificate.json", "--key", "lethe-keys.json"]
    checked = subprocess.run(verify, cwd=tmp_path / "demo", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert "verified" in checked.stdout


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["api", "worker-1", "redis"])
def test_killing_a_part_during_the_demo_loses_nothing(tmp_path: Path, victim: str) -> None:
    command = [sys.executable, "-m", "lethe", "demo", "--data-dir", str(tmp_path), "--subjects", "40"]
    demo = subprocess.Popen(command, env=embedded_environment(), stdout=subprocess.PIPE, text=True)
    log = tmp_path / "service.log"
    wait_until(lambda: log.exists() and POSTED in log.read_text(), "the first deletion was stored", timeout=60)
    os.kill(json.loads((tmp_path / "processes.json").read_text())[victim]["pid"], signal.SIGKILL)
    output, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, output
    assert "40 of 200" in output
    assert '"event": "died"' in log.read_text()
