"""What a bundle says, taken apart for printing. Nothing is verified here: that is for `lethe verify`."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any


class Unprintable(ValueError):
    """The text is no bundle, or its statement is of a kind that nobody has taught us to print."""


@dataclass(frozen=True)
class Logged:
    """Where the statement stands in the log, and the signed note that fixes the log as it was then."""

    index: int
    checkpoint: str

    @property
    def note(self) -> tuple[str, str, str]:
        """Origin, number of entries and root: the first three lines of a C2SP checkpoint."""
        lines = [*self.checkpoint.split("\n"), "", "", ""]
        return lines[0], lines[1], lines[2]


@dataclass(frozen=True)
class Statement:
    kind: str
    predicate: dict[str, Any]
    subjects: tuple[tuple[str, str], ...]
    """What is spoken of: names, each with its SHA-256."""
    key_ids: tuple[str, ...]
    digest: str
    """SHA-256 of the signed payload."""
    logged: Logged | None

    @property
    def id(self) -> str:
        """A certificate has its own; the others are known by their deletion."""
        return str(self.predicate.get("certificate") or self.predicate.get("deletion", ""))


def read_bundle(bundle: str) -> Statement:
    """Raises Unprintable."""
    try:
        whole = json.loads(bundle)
        payload = base64.b64decode(whole["envelope"]["payload"], validate=True)
        statement = json.loads(payload)
        return Statement(
            kind=statement["predicateType"],
            predicate=statement["predicate"],
            subjects=tuple((subject["name"], subject["digest"]["sha256"]) for subject in statement["subject"]),
            key_ids=tuple(signature["keyid"] for signature in whole["envelope"]["signatures"]),
            digest=hashlib.sha256(payload).hexdigest(),
            logged=_logged(whole.get("log")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unprintable("this is no Lethe bundle: pass the file as it was issued") from error


def _logged(log: dict[str, Any] | None) -> Logged | None:
    return Logged(int(log["index"]), str(log["checkpoint"])) if log else None
