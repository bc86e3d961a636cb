"""Section about the model's other files: which were destroyed, and when the others will be."""

from __future__ import annotations

from service.printing.parts import Paragraph, Section, Table
from service.printing.wording import format_time, show_hidden
from vocabulary.certificate import ErasureFacts

_MAX_FILES = 50
_KINDS = {"dataset": "data set", "posterior": "model", "never_seen": "never-seen rows", "orphan": "unknown"}
_EXPLANATION = (
    "Earlier versions, and files that interrupted work left behind, held the records or their influence. Each is "
    "destroyed before this certificate or at the time given here. The log has an entry for each destruction."
)


def erasure_section(erasure: ErasureFacts) -> Section:
    rows = [(file.digest, _describe_kind(file.kind), "before") for file in erasure.destroyed]
    rows += [(file.digest, _describe_kind(file.kind), format_time(file.at)) for file in erasure.scheduled]
    omitted = len(rows) - _MAX_FILES
    more = [(f"and {omitted:,} more, in the signed file", "", "")] if omitted > 0 else []
    header = ("SHA-256 of the file", "Held", "Destroyed")
    table = Table("Other files of the model", header, (*rows[:_MAX_FILES], *more), (0.62, 0.14, 0.24))
    return Section("Other files of the model", (Paragraph(_EXPLANATION), table))


def _describe_kind(kind: str) -> str:
    return _KINDS.get(kind, show_hidden(kind))
