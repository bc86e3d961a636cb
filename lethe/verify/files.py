"""Verification of files: reads them, and turns the outcome into an exit code and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .bundle import MAX_BUNDLE_BYTES, Unconfirmed, verify
from .reading import Rejected

VERIFIED, REJECTED, UNREADABLE, UNCONFIRMED = 0, 1, 2, 3
"""Exit codes."""
PRINTED = (b"%pdf-", b"<!doctype html")
"""How printed forms begin, in lower case."""
ENDINGS = {VERIFIED: "verified", REJECTED: "rejected", UNREADABLE: "not read", UNCONFIRMED: "not verified yet"}


def verify_files(
    bundle: Path,
    keys: Path,
    posterior: Path | None = None,
    later: Path | None = None,
    witnesses: Sequence[str] = (),
    origin: str | None = None,
) -> tuple[int, Mapping[str, Any]]:
    """Return the exit code and the result as JSON values."""
    try:
        content = _read(bundle)
        _require_signed_form(bundle.name, content)
        model, proof = posterior.read_bytes() if posterior else None, _read(later) if later else None
        verified = verify(content, _read(keys), model, proof, witnesses, origin)
    except OSError as error:
        return UNREADABLE, _failure("unreadable", f"cannot read {error.filename}: {error.strerror}")
    except _Printed as reason:
        return UNREADABLE, _failure("unreadable", str(reason))
    except Unconfirmed as missing:
        return UNCONFIRMED, {**_failure("unconfirmed", str(missing)), **missing.so_far.findings()}
    except Rejected as reason:
        return REJECTED, _failure("rejected", str(reason))
    return VERIFIED, verified.facts()


class _Printed(Exception):
    """The file is a certificate's printed form, which carries no signature."""


def _require_signed_form(name: str, content: bytes) -> None:
    if content.lstrip()[:15].lower().startswith(PRINTED):
        raise _Printed(
            f"{name} is the printed form, which carries no signature: pass the .json file of the same "
            "certificate, which `lethe certificate get` downloads"
        )


def write_ending(code: int, facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return the outcome in words, and what to add to it."""
    return ENDINGS[code], f": {printable(facts['reason'])}" if "reason" in facts else ""


def printable(text: str) -> str:
    """Replace characters that would change what a terminal shows."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _read(path: Path) -> bytes:
    """Read a file up to the size at which it is refused."""
    with path.open("rb") as file:
        return file.read(MAX_BUNDLE_BYTES + 1)


def _failure(outcome: str, reason: str) -> dict[str, Any]:
    return {"verified": False, "outcome": outcome, "reason": reason}
