"""The supervisor of `lethe up`: starts programs, restarts those that die or stand still, and stops them together.

Written here because honcho does not restart, and circus and supervisord need a daemon and configuration files.

`Supervisor.run` needs the main thread: signals are delivered there, and on Linux the signal at a parent's death comes
at the death of the thread that started the child.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import structlog

from lethe.local.child import STOP_SIGNALS, Child, Program
from lethe.local.stopped import CHECK_SECONDS, STOPPED_SECONDS, StoppedProcesses
from service.settings import make_private_folder

__all__ = ["AlreadyRunningError", "Program", "Supervisor", "exclusive"]

ALARMING_DEATHS = 5

log = structlog.get_logger("supervisor")


class AlreadyRunningError(RuntimeError):
    """Another supervisor runs on the data folder."""


class Supervisor:
    """Keeps `programs` running until SIGINT or SIGTERM. Run it inside `exclusive(data_dir)`."""

    def __init__(
        self,
        programs: Sequence[Program],
        data_dir: Path,
        log_file: Path | None = None,
        grace_seconds: float = 20.0,
    ) -> None:
        self._children = [Child(program) for program in programs]
        self._processes_file = data_dir / "processes.json"
        self._log_file = log_file
        self._grace_seconds = grace_seconds
        self._stopped = StoppedProcesses()
        self._wakeups = -1
        self._stop_requests = 0

    def run(self) -> int:
        """Run until a stop signal. Return 0 if every child stopped in time, 1 if one had to be killed."""
        with _signals_as_bytes() as self._wakeups, self._output() as output:
            try:
                while not self._stop_requests:
                    self._start_due(output)
                    self._kill_stopped()
                    self._wait(self._seconds_to_next_check())
            finally:
                killed = self._stop()
                self._processes_file.unlink(missing_ok=True)
        return int(killed)

    def _start_due(self, output: IO[bytes] | None) -> None:
        for child in self._children:
            if child.process is None and child.due_at <= time.monotonic():
                self._start(child, output)

    def _start(self, child: Child, output: IO[bytes] | None) -> None:
        try:
            pid = child.start(output)
        except OSError as error:
            self._restart_later(child, error=f"{child.program.argv[0]}: {error.strerror}")
            return
        self._record_processes()
        self._log("info", "started", program=child.program.name, pid=pid)

    def _kill_stopped(self) -> None:
        """Kill processes that were stopped and not continued, of our children or below them."""
        names = {child.process.pid: child.program.name for child in self._children if child.process is not None}
        for process in self._stopped.find_lasting(names):
            name = names[process.group]
            self._log("warning", "stood still", program=name, pid=process.pid, seconds=STOPPED_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _seconds_to_next_check(self) -> float:
        """Return the seconds to the next start or the next search for stopped processes, whichever is earlier."""
        due = [child.due_at - time.monotonic() for child in self._children if child.process is None]
        return max(0.0, min([*due, CHECK_SECONDS]))

    def _wait(self, timeout: float) -> None:
        """Sleep until a signal or the timeout. A signal that arrived before the call ends it at once."""
        readable, _, _ = select.select([self._wakeups], [], [], timeout)
        if readable:
            self._stop_requests += sum(number in STOP_SIGNALS for number in os.read(self._wakeups, 4096))
        for child in self._children:
            code = child.reap()
            if code is not None:
                self._handle_exit(child, code)

    def _handle_exit(self, child: Child, code: int) -> None:
        if self._stop_requests:
            self._log("info", "stopped", program=child.program.name, **_describe_exit(code))
        else:
            self._restart_later(child, **_describe_exit(code))

    def _restart_later(self, child: Child, **cause: Any) -> None:
        delay = child.postpone()
        self._log("warning", "died", program=child.program.name, restarting_in_seconds=delay, **cause)
        if child.deaths_in_a_row >= ALARMING_DEATHS:
            self._log(
                "critical",
                "keeps dying: see its last log lines; it is restarted until the supervisor is stopped",
                program=child.program.name,
                deaths_in_a_row=child.deaths_in_a_row,
                **cause,
            )

    def _stop(self) -> bool:
        """Stop the children in reverse order of their start; return whether one had to be killed."""
        self._stop_requests = max(self._stop_requests, 1)
        self._log("info", "stopping", grace_seconds=self._grace_seconds)
        deadline = time.monotonic() + self._grace_seconds
        in_time = [self._stop_child(child, deadline) for child in reversed(self._children)]
        self._log("info", "all stopped")
        return not all(in_time)

    def _stop_child(self, child: Child, deadline: float) -> bool:
        """Stop a child; return False if it had to be killed, at the deadline or at a second stop signal."""
        if child.process is not None:
            child.process.terminate()
        while child.process is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._stop_requests > 1:
                self._log("warning", "killed", program=child.program.name, pid=child.process.pid)
                child.kill()
                return False
            self._wait(remaining)
        return True

    def _output(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        return contextlib.nullcontext() if self._log_file is None else self._log_file.open("ab")

    def _record_processes(self) -> None:
        """Write the process ids for operators; a program that is missing there is not running."""
        running = {
            child.program.name: {"pid": child.process.pid, "restarts": child.starts - 1}
            for child in self._children
            if child.process is not None
        }
        draft = self._processes_file.with_suffix(".new")
        try:
            draft.write_text(json.dumps(running, indent=2) + "\n")
            draft.replace(self._processes_file)
        except OSError as error:  # a full disk must not stop the service
            self._log("warning", "cannot write the process ids", error=str(error))

    def _log(self, level: str, event: str, **fields: Any) -> None:
        # A closed terminal or pipe must not end the supervisor while it stops its children.
        with contextlib.suppress(OSError):
            getattr(log, level)(event, **fields)


@contextlib.contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Lock the data folder against a second supervisor. The kernel releases the lock however the process dies."""
    make_private_folder(data_dir)
    with (data_dir / "supervisor.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise AlreadyRunningError(
                f"Lethe already runs on {data_dir.resolve()} (process {lock.read().strip() or 'unknown'}): "
                "stop it first, or choose another --data-dir."
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """Yield a file descriptor that delivers arriving signals as bytes, so that none is lost before a sleep."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    handled = {*STOP_SIGNALS, signal.SIGCHLD}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup set this on purpose
        handled.remove(signal.SIGHUP)
    before_wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_wakeup)
        os.close(reading)
        os.close(writing)


def _describe_exit(code: int) -> dict[str, Any]:
    """Return the exit code, or the name of the signal that ended the process."""
    if code >= 0:
        return {"exit_code": code}
    return {"signal": next((number.name for number in signal.Signals if number == -code), str(-code))}
