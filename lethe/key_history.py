"""History of keys in the log, compared with the list of keys.

Every addition, retirement and revocation is an entry of the log. So whoever changes the list in the database, for
instance to add a key of their own or to take back a revocation, contradicts the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lethe.verify import Rejected
from lethe.verify.keys import KeyRing
from lethe.verify.reading import object_at, text_at, time_at


@dataclass
class KeyHistory:
    """What the log says about keys, by key id."""

    added: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    revoked: dict[str, datetime] = field(default_factory=dict)
    """The earliest time from which a key is not trusted."""

    def read_entry(self, entry: Mapping[str, Any]) -> None:
        """Note an entry if it is about a key."""
        action = text_at(entry, "action")
        if not action.startswith("key."):
            return
        key_id = text_at(entry, "concerns")
        if action == "key.added":
            self.added.add(key_id)
        elif action == "key.retired":
            self.retired.add(key_id)
        elif action == "key.revoked":
            revoked_at = time_at(object_at(entry, "details"), "at")
            self.revoked[key_id] = min(revoked_at, self.revoked.get(key_id, revoked_at))

    def compare(self, ring: KeyRing) -> None:
        """Raise Rejected if the list of keys contradicts the log."""
        for key_id, key in ring.keys.items():
            if key_id not in self.added:
                raise Rejected(
                    f"the list has key {key_id[:12]}, but the log does not record its addition; if it was added in the "
                    "last seconds, repeat the audit"
                )
            revoked_at = self.revoked.get(key_id)
            if revoked_at is not None and (key.revoked_at is None or key.revoked_at > revoked_at):
                raise Rejected(_describe_missing(key_id, f"revoked from {revoked_at.isoformat()}"))
            if key_id in self.retired and key.retired_at is None and key.revoked_at is None:
                raise Rejected(_describe_missing(key_id, "retired"))


def _describe_missing(key_id: str, state: str) -> str:
    return f"the log records that key {key_id[:12]} was {state}, but the list of keys does not say so; fetch the list"
