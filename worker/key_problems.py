"""Reports of a background loop that waits for a key that may sign: one line each time the reason changes."""

from __future__ import annotations

import structlog

from service.settings import ConfigurationError
from service.store.errors import KeyInactive

KEY_PROBLEMS = (KeyInactive, ConfigurationError)
"""The loop's key was retired or revoked, and the configured one may not sign either."""

log = structlog.get_logger("keys")


class KeyReport:
    """Remembers the last reason, since a loop tries again each second."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self._reason = ""

    def wait(self, error: Exception) -> None:
        if str(error) != self._reason:
            log.error("key.awaited", loop=self._loop, reason=str(error))
        self._reason = str(error)

    def clear(self) -> None:
        self._reason = ""
