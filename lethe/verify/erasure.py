"""Checks what a statement says about the other files of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .reading import Rejected, hash_at, list_at, object_at, text_at, time_at


def check_erasure(predicate: Mapping[str, Any], before: Collection[str], after: Collection[str]) -> str:
    """Check that every file of the version before was or will be destroyed, and none of the version after."""
    erasure = object_at(predicate, "erasure")
    destroyed, scheduled = _digests(erasure, "destroyed"), _digests(erasure, "scheduled")
    files = {*destroyed, *scheduled}
    if len(files) != len(destroyed) + len(scheduled):
        raise Rejected("erasure lists a file as destroyed and as scheduled")
    if not {*before} - {*after} <= files:
        raise Rejected("a file of the version before is not among those that were or will be destroyed")
    if files & {*after}:
        raise Rejected("a file of the version after is among those that were or will be destroyed")
    times = [time_at(file, "at") for file in list_at(erasure, "scheduled")]
    due = f", {len(times)} due by {max(times).isoformat()}" if times else ""
    return f"other files of the model: {len(destroyed)} were destroyed before{due}"


def _digests(erasure: Mapping[str, Any], name: str) -> list[str]:
    """Return the digests of one of the lists, which ascend."""
    digests = [hash_at(file, "digest").hex() for file in list_at(erasure, name)]
    for file in list_at(erasure, name):
        text_at(file, "kind")
    if digests != sorted({*digests}):
        raise Rejected(f"the digests of erasure.{name} do not ascend")
    return digests
