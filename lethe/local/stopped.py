"""Search for stopped processes (SIGSTOP, a suspended job). One that stays stopped holds its locks for ever.

On SQLite such a lock is the only one for writing: everything waits for it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

STOPPED_SECONDS = 20.0
"""A process that is stopped for this long is killed. Shorter than others wait for the database (engines.py)."""
CHECK_SECONDS = 2.0
STOPPED = "T"
"""State of a stopped process. One that a debugger holds has another, and is left alone."""
PROC = Path("/proc")
PS = ("/bin/ps", "-A", "-o", "pid=,pgid=,state=")


class Process(NamedTuple):
    pid: int
    group: int
    state: str


class StoppedProcesses:
    """Stopped processes of some process groups, and since when each has been seen so."""

    def __init__(self) -> None:
        self._first_seen: dict[int, float] = {}

    def find_lasting(self, groups: Collection[int]) -> list[Process]:
        """Return the processes of these groups that have been stopped for STOPPED_SECONDS."""
        now = time.monotonic()
        stopped = [process for process in list_processes() if process.state == STOPPED and process.group in groups]
        self._first_seen = {process.pid: self._first_seen.get(process.pid, now) for process in stopped}
        return [process for process in stopped if now - self._first_seen[process.pid] >= STOPPED_SECONDS]


def list_processes() -> Iterator[Process]:
    """Yield all processes, from /proc or, on systems without it, from ps."""
    return _read_proc() if (PROC / "self" / "stat").exists() else _run_ps()


def _read_proc() -> Iterator[Process]:
    for folder in PROC.glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        state, _, group = text.rpartition(")")[2].split()[:3]  # after the name, which may contain anything
        yield Process(int(folder.name), int(group), state)


def _run_ps() -> Iterator[Process]:
    result = subprocess.run(PS, capture_output=True, text=True, check=False)  # noqa: S603 - a constant
    for line in result.stdout.splitlines():
        pid, group, state = line.split()
        yield Process(int(pid), int(group), state[:1])
