"""A supervised program and its current process: start, exit and restart delay."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 10.0
STEADY_SECONDS = 30.0
"""A process that ran this long had started well: its death counts as the first."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Program:
    """A command to keep running; `env` is added to the supervisor's environment."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


class Child:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.deaths_in_a_row = 0
        self.due_at = 0.0
        self._started_at = 0.0

    def start(self, output: IO[bytes] | None) -> int:
        """Start the program and return its process id. Raises OSError if it cannot be executed."""
        self.starts += 1
        self._started_at = time.monotonic()
        supervisor = os.getpid()
        # Until the child has its own session, it shares our terminal and signal handlers: a Ctrl-C in between would be
        # counted twice, by us and by the inherited handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - the command comes from our own code
                self.program.argv,
                env={**os.environ, **self.program.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: _prepare_child(supervisor),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return self.process.pid

    def reap(self) -> int | None:
        """Return the exit code if the process has ended, once, and kill the rest of its process group."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        _kill_group(self.process.pid)
        self.process = None
        return code

    def kill(self) -> None:
        if self.process is not None:
            _kill_group(self.process.pid)
            self.process.wait()
            self.process = None

    def postpone(self) -> float:
        """Count a death and return the seconds until the next start."""
        now = time.monotonic()
        steady = now - self._started_at >= STEADY_SECONDS
        self.deaths_in_a_row = 1 if steady else self.deaths_in_a_row + 1
        doublings = min(self.deaths_in_a_row - 1, 16)  # without the limit, the power overflows after many failures
        delay = min(FIRST_DELAY_SECONDS * 2.0**doublings, LONGEST_DELAY_SECONDS)
        self.due_at = now + delay
        return delay


def _kill_group(leader: int) -> None:
    # macOS returns EPERM for a group that consists of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _prepare_child(supervisor: int) -> None:
    """Restore default signals and, on Linux, have SIGTERM sent when the supervisor dies. Runs before exec."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    if os.getppid() != supervisor:
        os._exit(1)  # it died before the request took effect
