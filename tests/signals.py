"""Default signals for processes that tests start.

Under `nohup`, or as a shell's background job, the tests ignore SIGHUP or SIGINT, and their children inherit that.
"""

from __future__ import annotations

import signal


def restore_signals() -> None:
    """Stop ignoring SIGINT and SIGHUP. Pass it to Popen as `preexec_fn`, to run in the child."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
