"""The supervisor, in a process of its own, with small real children."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lethe.local.supervisor import AlreadyRunningError, exclusive
from tests.signals import restore_signals
from tests.waiting import wait_until

DRIVER = """
import json, sys
from pathlib import Path
import structlog
from lethe.local import child, stopped, supervisor
from lethe.local.supervisor import Program, Supervisor, exclusive

structlog.configure(processors=[
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt=None),
    structlog.processors.JSONRenderer(),
])
options = json.loads(sys.argv[1])
child.FIRST_DELAY_SECONDS = options["first_delay"]
stopped.STOPPED_SECONDS, supervisor.CHECK_SECONDS = options["stopped_seconds"], 0.05
programs = [Program(name, argv, {"MARK": name}) for name, argv in options["programs"].items()]
log_file = Path(options["log_file"]) if options["log_file"] else None
data_dir = Path(options["data_dir"])
with exclusive(data_dir):
    sys.exit(Supervisor(programs, data_dir, log_file, options["grace_seconds"]).run())
"""

SLEEPER = "import time; time.sleep(600)"
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1], "ignores-sigterm").touch()
time.sleep(600)
"""

PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", sys.argv[1]])
import time; time.sleep(600)
"""


class Stage:
    """A data folder, the supervisor on it, and every process that mentions the folder."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.data_dir.mkdir()
        self.screen = folder / "screen"
        self.supervisor: subprocess.Popen[bytes] | None = None

    def program(self, script: str) -> list[str]:
        """Return the command of a Python child; `living` recognises it by the data folder among its arguments."""
        return [sys.executable, "-I", "-S", "-c", script, str(self.data_dir)]

    def start(
        self,
        programs: dict[str, list[str]],
        *,
        grace_seconds: float = 20.0,
        first_delay: float = 0.05,
        stopped_seconds: float = 20.0,
        log_file: Path | None = None,
        stdout: int | None = None,
        preexec_fn: Callable[[], None] = restore_signals,
    ) -> subprocess.Popen[bytes]:
        options = {
            "programs": programs,
            "data_dir": str(self.data_dir),
            "grace_seconds": grace_seconds,
            "first_delay": first_delay,
            "stopped_seconds": stopped_seconds,
            "log_file": str(log_file) if log_file else None,
        }
        with self.screen.open("wb") as screen:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-c", DRIVER, json.dumps(options)],
                stdout=screen if stdout is None else stdout,
                stderr=subprocess.STDOUT if stdout is None else subprocess.DEVNULL,
                preexec_fn=preexec_fn,
            )
        return self.supervisor

    def events(self, event: str, program: str | None = None) -> list[dict[str, Any]]:
        lines = [line for line in self.screen.read_text().splitlines(keepends=True) if line.endswith("}\n")]
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [
            entry for entry in entries if entry["event"].startswith(event) and program in (None, entry.get("program"))
        ]

    def processes(self) -> dict[str, dict[str, int]]:
        try:
            return json.loads((self.data_dir / "processes.json").read_text())  # type: ignore[no-any-return]
        except FileNotFoundError:
            return {}

    def running(self, *names: str) -> dict[str, dict[str, int]]:
        def all_recorded() -> dict[str, dict[str, int]] | None:
            recorded = self.processes()
            return recorded if set(recorded) >= set(names) else None

        return wait_until(all_recorded, f"{names} started")  # type: ignore[no-any-return]

    def restarted(self, name: str, times: int = 1) -> int:
        def restarted_pid() -> int | None:
            entry = self.processes().get(name, {"pid": 0, "restarts": 0})
            return entry["pid"] if entry["restarts"] >= times else None

        return wait_until(restarted_pid, f"{name} restarted")  # type: ignore[no-any-return]

    def living(self) -> list[psutil.Process]:
        """Return the children and their descendants, without the supervisor."""
        processes = psutil.process_iter(["cmdline", "status"])
        return [process for process in processes if str(self.data_dir) in (process.info["cmdline"] or [])]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    if stage.supervisor is not None:
        stage.supervisor.kill()
        stage.supervisor.wait()
    for process in stage.living():
        process.kill()


def test_restarts_a_killed_child_at_once(stage: Stage) -> None:
    stage.start({"api": stage.program(SLEEPER)})
    first = stage.running("api")["api"]
    assert first["restarts"] == 0

    killed_at = time.time()
    os.kill(first["pid"], signal.SIGKILL)
    second = stage.restarted("api")

    (died,) = stage.events("died", "api")
    assert died["signal"] == "SIGKILL"
    assert died["timestamp"] - killed_at < 0.5  # milliseconds on an idle machine
    assert second != first["pid"]
    assert [process.pid for process in stage.living()] == [second]


def test_backs_off_and_raises_an_alarm_when_a_program_keeps_dying(stage: Stage) -> None:
    stage.start({"worker": stage.program("raise SystemExit(3)"), "api": stage.program(SLEEPER)})
    alarm = wait_until(lambda: stage.events("keeps dying"), "the alarm")[0]
    assert alarm["level"] == "critical"
    assert (alarm["program"], alarm["exit_code"], alarm["deaths_in_a_row"]) == ("worker", 3, 5)

    wait_until(lambda: len(stage.events("started", "worker")) >= 6, "one more try after the alarm")
    died = stage.events("died", "worker")[:5]
    started = stage.events("started", "worker")[1:6]
    delays = [entry["restarting_in_seconds"] for entry in died]
    assert delays == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    waited = [start["timestamp"] - death["timestamp"] for death, start in zip(died, started, strict=True)]
    assert all(actual >= delay - 0.01 for actual, delay in zip(waited, delays, strict=True))
    assert stage.processes()["api"]["restarts"] == 0


def test_a_dead_leader_takes_its_descendants_along(stage: Stage) -> None:
    stage.start({"worker": stage.program(PARENT)}, first_delay=0.3)
    leader = stage.running("worker")["worker"]["pid"]
    wait_until(lambda: len(stage.living()) == 2, "the pool process")
    (pool,) = [process for process in stage.living() if process.pid != leader]

    os.kill(leader, signal.SIGKILL)
    died = wait_until(lambda: stage.events("died", "worker"), "its death in the log")
    wait_until(lambda: not pool.is_running() or pool.status() == psutil.STATUS_ZOMBIE, "the pool's death")
    assert died
    stage.restarted("worker")


def test_kills_a_child_that_stays_stopped(stage: Stage) -> None:
    stage.start({"worker": stage.program(SLEEPER), "api": stage.program(SLEEPER)}, stopped_seconds=0.3)
    first = stage.running("worker", "api")["worker"]["pid"]
    os.kill(first, signal.SIGSTOP)
    stopped_at = time.time()
    assert stage.restarted("worker") != first
    (stood_still,) = stage.events("stood still", "worker")
    assert stood_still["pid"] == first
    assert stood_still["timestamp"] - stopped_at >= 0.3
    assert stage.processes()["api"]["restarts"] == 0


def test_kills_only_the_stopped_descendant_of_a_child(stage: Stage) -> None:
    stage.start({"worker": stage.program(PARENT)}, stopped_seconds=0.1)
    leader = stage.running("worker")["worker"]["pid"]
    wait_until(lambda: len(stage.living()) == 2, "the pool process")
    (pool,) = [process for process in stage.living() if process.pid != leader]
    pool.suspend()
    wait_until(lambda: not pool.is_running() or pool.status() == psutil.STATUS_ZOMBIE, "the pool's death")
    assert stage.processes()["worker"] == {"pid": leader, "restarts": 0}


def test_a_child_that_is_continued_in_time_lives_on(stage: Stage) -> None:
    stage.start({"worker": stage.program(SLEEPER)}, stopped_seconds=0.3)
    worker = psutil.Process(stage.running("worker")["worker"]["pid"])
    for _ in range(4):  # longer in total, each time shorter
        worker.suspend()
        time.sleep(0.1)
        worker.resume()
        time.sleep(0.1)
    assert worker.is_running()
    assert stage.events("stood still") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stops_cleanly_in_reverse_order(stage: Stage, number: signal.Signals) -> None:
    names = ["redis", "api", "worker", "sweep"]
    supervisor = stage.start({name: stage.program(SLEEPER) for name in names})
    stage.running(*names)

    supervisor.send_signal(number)
    assert supervisor.wait(timeout=20) == 0
    assert stage.living() == []
    assert [entry["program"] for entry in stage.events("stopped")] == names[::-1]
    assert {entry["signal"] for entry in stage.events("stopped")} == {"SIGTERM"}
    assert not (stage.data_dir / "processes.json").exists()
    assert stage.events("all stopped")


def test_under_nohup_a_hangup_is_ignored(stage: Stage) -> None:
    supervisor = stage.start(
        {"api": stage.program(SLEEPER)}, preexec_fn=lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN), None)[1]
    )
    stage.running("api")
    supervisor.send_signal(signal.SIGHUP)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=20) == 0
    assert stage.events("stopped", "api")


def test_a_stop_during_start_up_leaves_nothing(stage: Stage) -> None:
    impatient = {"first": ["/bin/sh", "-c", 'kill -TERM "$PPID"']}
    sleepers = {f"sleeper {number}": stage.program(SLEEPER) for number in range(25)}
    supervisor = stage.start(impatient | sleepers)

    assert supervisor.wait(timeout=20) == 0
    assert len(stage.events("started")) > 1
    assert stage.living() == []


def test_kills_a_child_that_ignores_sigterm_after_the_grace_period(stage: Stage) -> None:
    supervisor = stage.start({"redis": stage.program(SLEEPER), "worker": stage.program(STUBBORN)}, grace_seconds=0.4)
    stage.running("redis", "worker")
    wait_until((stage.data_dir / "ignores-sigterm").exists, "the child ignores SIGTERM")

    signalled_at = time.monotonic()
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=20) == 1
    assert 0.4 <= time.monotonic() - signalled_at < 10
    assert [entry["program"] for entry in stage.events("killed")][:1] == ["worker"]
    assert stage.living() == []


def test_a_second_signal_kills_at_once(stage: Stage) -> None:
    supervisor = stage.start({"worker": stage.program(STUBBORN)}, grace_seconds=600)
    wait_until((stage.data_dir / "ignores-sigterm").exists, "the child ignores SIGTERM")
    supervisor.send_signal(signal.SIGINT)
    wait_until(lambda: stage.events("stopping"), "the stop")
    assert supervisor.poll() is None

    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(timeout=20) == 1
    assert stage.living() == []


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_killed_supervisor_leaves_no_child(stage: Stage) -> None:
    supervisor = stage.start({"redis": stage.program(SLEEPER), "api": stage.program(SLEEPER)})
    stage.running("redis", "api")
    assert len(stage.living()) == 2

    supervisor.kill()
    supervisor.wait()
    wait_until(lambda: not stage.living(), "the children's end")


def test_a_second_supervisor_is_refused_with_the_process_of_the_first(stage: Stage) -> None:
    supervisor = stage.start({"api": stage.program(SLEEPER)})
    stage.running("api")
    with (
        pytest.raises(AlreadyRunningError, match=rf"process {supervisor.pid}\): stop it first"),
        exclusive(stage.data_dir),
    ):
        pass
    assert supervisor.poll() is None


def test_a_surviving_child_does_not_hold_the_folder(stage: Stage) -> None:
    supervisor = stage.start({"worker": stage.program(STUBBORN)})
    wait_until((stage.data_dir / "ignores-sigterm").exists, "the child ignores SIGTERM")
    supervisor.kill()
    supervisor.wait()

    assert len(stage.living()) == 1
    with (stage.data_dir / "supervisor.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_children_have_their_own_session_and_environment(stage: Stage) -> None:
    show_mark = "import os, sys, time; print(os.environ['MARK'], flush=True); time.sleep(600)"
    stage.start({"api": stage.program(show_mark), "sweep": stage.program(show_mark)})
    recorded = stage.running("api", "sweep")

    wait_until(lambda: {"api", "sweep"} <= set(stage.screen.read_text().split()), "both marks")
    assert {os.getsid(entry["pid"]) for entry in recorded.values()} == {entry["pid"] for entry in recorded.values()}
    assert [entry["restarts"] for entry in recorded.values()] == [0, 0]
    assert {process.pid for process in stage.living()} == {entry["pid"] for entry in recorded.values()}


def test_a_log_file_takes_what_children_print(stage: Stage) -> None:
    log_file = stage.data_dir / "children.log"
    log_file.write_text("before\n")
    shout = "import sys, time; print('out', flush=True); print('err', file=sys.stderr); time.sleep(600)"
    stage.start({"api": stage.program(shout)}, log_file=log_file)

    wait_until(lambda: sorted(log_file.read_text().split()) == ["before", "err", "out"], "both lines")
    assert log_file.read_text().startswith("before\n")
    assert "out" not in stage.screen.read_text().split()


def test_a_missing_program_is_tried_until_it_is_there(stage: Stage) -> None:
    tool = stage.data_dir / "tool"
    stage.start({"redis": [str(tool), str(stage.data_dir)], "api": stage.program(SLEEPER)})
    died = wait_until(lambda: stage.events("died", "redis"), "the failed start")[0]
    assert died["error"] == f"{tool}: No such file or directory"
    assert "redis" not in stage.running("api")

    draft = stage.data_dir / "draft"
    draft.write_text("#!/bin/sh\nexec sleep 600\n")
    draft.chmod(0o755)
    draft.rename(tool)
    assert stage.running("redis")["redis"]["restarts"] >= 1


def test_goes_on_when_its_output_pipe_is_closed(stage: Stage) -> None:
    reading, writing = os.pipe()
    supervisor = stage.start({"api": stage.program(SLEEPER)}, stdout=writing)
    os.close(writing)
    first = stage.running("api")["api"]["pid"]
    os.close(reading)

    os.kill(first, signal.SIGKILL)
    stage.restarted("api")
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(timeout=20)
    assert stage.living() == []
    assert not (stage.data_dir / "processes.json").exists()
