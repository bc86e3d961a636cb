"""One child process; test_supervisor.py has the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lethe.local.child import STEADY_SECONDS, Child, Program
from tests.waiting import wait_until

WAIT = "import sys, time; print('started', flush=True); time.sleep(600)"


def test_delay_is_capped_and_forgotten_after_a_steady_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("lethe.local.child.time.monotonic", lambda: now)
    child = Child(Program("api", ["true"]))
    child._started_at = now
    assert [child.postpone() for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert child.due_at == now + 10.0
    for _ in range(2000):
        child.postpone()

    now += STEADY_SECONDS
    assert child.postpone() == 0.5
    assert child.deaths_in_a_row == 1


def test_a_program_that_is_missing_raises() -> None:
    with pytest.raises(FileNotFoundError):
        Child(Program("api", ["/nowhere/lethe"])).start(None)


def test_the_exit_code_is_reported_once(tmp_path: Path) -> None:
    child = Child(Program("api", ["/bin/sh", "-c", "exit $CODE"], {"CODE": "7"}))
    assert child.reap() is None
    with (tmp_path / "log").open("wb") as log:
        child.start(log)
    codes = [wait_until(child.reap, "the exit"), child.reap()]
    assert codes == [7, None]
    assert child.starts == 1


def test_ignored_stop_signals_are_restored_in_the_child(tmp_path: Path) -> None:
    """A child of `nohup lethe up` can still be stopped by SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child, log_file = Child(Program("api", [sys.executable, "-I", "-S", "-c", WAIT])), tmp_path / "log"
        with log_file.open("wb") as log:
            pid = child.start(log)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until(lambda: log_file.read_text() == "started\n", "the child")
    os.kill(pid, signal.SIGHUP)
    assert wait_until(child.reap, "the exit") == -signal.SIGHUP


def test_kill_ends_the_whole_group(tmp_path: Path) -> None:
    script, log_file = "sleep 600 & echo $!; wait", tmp_path / "log"
    child = Child(Program("worker", ["/bin/sh", "-c", script]))
    with log_file.open("wb") as log:
        child.start(log)
    descendant = wait_until(lambda: log_file.read_text().strip(), "the descendant")
    child.kill()
    assert child.process is None
    wait_until(lambda: _is_gone(descendant), "the end of the descendant")


def _is_gone(pid: str) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1] in ("", "Z")
