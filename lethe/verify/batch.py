"""Verification of many statements in two stages, for the service that is about to publish them.

What they share is checked once: the keys and the checkpoint. Signatures and contents are checked before the log has
the statements' entries, because others wait for the log while it grows; their places are checked after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .bundle import check_signed, open_bundle
from .checkpoints import Checkpoint, open_checkpoint
from .keys import Key, load_keys
from .log import check_place
from .reading import object_at, text_at
from .statements import Kind


@dataclass(frozen=True)
class CheckedStatement:
    """What the second stage needs of a statement that passed the first."""

    key: Key
    kind: Kind
    payload: bytes
    predicate: Mapping[str, Any]
    """Members that its entry in the log is compared with."""


class BatchVerifier:
    """Verifier with one list of keys. All of its methods raise Rejected."""

    def __init__(self, keys: bytes) -> None:
        self._ring = load_keys(keys)
        self._checkpoints: dict[str, Checkpoint] = {}

    def check_statement(self, content: bytes) -> CheckedStatement:
        """Check signature and content of a bundle, which need not show its place in the log yet."""
        signed = check_signed(object_at(open_bundle(content), "envelope"), self._ring)
        compared = {signed.kind.concerns, signed.kind.signed_at, "log"}
        predicate = {name: value for name, value in signed.predicate.items() if name in compared}
        return CheckedStatement(signed.key, signed.kind, signed.payload, predicate)

    def check_place(self, checked: CheckedStatement, log: Mapping[str, Any]) -> None:
        """Check the member `log` of the bundle with this statement."""
        note = text_at(log, "checkpoint")
        if note not in self._checkpoints:
            self._checkpoints[note] = open_checkpoint(note, self._ring)
        at = check_place(log, self._checkpoints[note], checked.kind, checked.predicate, checked.payload)
        checked.key.require_trusted(at)
