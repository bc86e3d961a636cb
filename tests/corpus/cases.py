"""A case for verifiers: the files that they read, and the outcome of the reference implementation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lethe.verify import Rejected, Unconfirmed, verify
from tests.bundle_schema import accepting_other_content

NOW = datetime(2026, 11, 20, tzinfo=UTC)
OUTCOMES = {0: "verified", 1: "rejected", 3: "unconfirmed"}
"""Outcomes by exit code."""


@dataclass(frozen=True)
class Case:
    """What a verifier is given."""

    name: str
    bundle: bytes
    keys: bytes
    later: bytes | None = None
    posterior: bytes | None = None
    witnesses: Sequence[str] = ()
    origin: str | None = None

    @functools.cached_property
    def verdict(self) -> tuple[int, str]:
        """Exit code of the reference implementation, and its reason."""
        try:
            with accepting_other_content():
                verify(self.bundle, self.keys, self.posterior, self.later, self.witnesses, self.origin, NOW)
        except Unconfirmed as missing:
            return 3, str(missing)
        except Rejected as reason:
            return 1, str(reason)
        return 0, ""

    @property
    def exit_code(self) -> int:
        return self.verdict[0]

    def write(self, folder: Path) -> list[str]:
        """Write the files into a folder, and return the arguments of a command-line verifier."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {"bundle": self.bundle, "key": self.keys, "later": self.later, "posterior": self.posterior}
        arguments: list[str] = []
        for name, content in files.items():
            if content is not None:
                (folder / name).write_bytes(content)
                arguments += [str(folder / name)] if name == "bundle" else [f"--{name}", str(folder / name)]
        for witness in self.witnesses:
            arguments += ["--witness", witness]
        return arguments if self.origin is None else [*arguments, "--origin", self.origin]
