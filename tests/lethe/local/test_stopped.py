from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lethe.local import stopped
from lethe.local.stopped import Process, StoppedProcesses, list_processes
from service.store.engines import SQLITE_BUSY_SECONDS
from tests.waiting import wait_until

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    with subprocess.Popen(SLEEPER, start_new_session=True) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture(params=["/proc", "ps"])
def _source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if request.param == "ps":
        monkeypatch.setattr(stopped, "PROC", tmp_path)


def find(pid: int) -> Process:
    return next(process for process in list_processes() if process.pid == pid)


@pytest.mark.usefixtures("_source")
def test_processes_have_their_group_and_state(sleeper: psutil.Process) -> None:
    assert find(sleeper.pid).group == sleeper.pid
    assert find(os.getpid()).group == os.getpgrp()
    assert find(sleeper.pid).state != "T"
    sleeper.suspend()
    wait_until(lambda: find(sleeper.pid).state == "T", "it is stopped")


def test_only_lasting_stops_in_the_given_groups_count(sleeper: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 19.0, 21.0, 22.0, 23.0])
    monkeypatch.setattr(stopped, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    search, groups = StoppedProcesses(), {sleeper.pid}
    sleeper.suspend()
    wait_until(lambda: sleeper.status() == psutil.STATUS_STOPPED, "it is stopped")
    assert search.find_lasting(groups) == []
    assert search.find_lasting(groups) == []
    assert search.find_lasting(groups) == [Process(sleeper.pid, sleeper.pid, "T")]
    assert search.find_lasting({os.getpgrp()}) == []
    assert search.find_lasting(groups) == []  # counts from the beginning


def test_a_stopped_writer_is_killed_before_others_give_up() -> None:
    assert stopped.STOPPED_SECONDS + 2 * stopped.CHECK_SECONDS < SQLITE_BUSY_SECONDS
