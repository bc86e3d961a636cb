from __future__ import annotations

from datetime import UTC, datetime

from service.printing.erasure_sections import erasure_section
from service.printing.parts import Table
from vocabulary.certificate import DestroyedFile, ErasureFacts, ScheduledFile

DUE = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)


def rows(erasure: ErasureFacts) -> tuple[tuple[str, ...], ...]:
    (table,) = (part for part in erasure_section(erasure).parts if isinstance(part, Table))
    return table.rows


def test_each_file_is_listed_with_the_time_of_its_destruction() -> None:
    erasure = ErasureFacts(
        destroyed=[DestroyedFile(digest="a" * 64, kind="dataset")],
        scheduled=[ScheduledFile(at=DUE, digest="b" * 64, kind="posterior")],
    )
    (destroyed, scheduled) = rows(erasure)
    assert destroyed == ("a" * 64, "data set", "before")
    assert scheduled[:2] == ("b" * 64, "model")
    assert "2026" in scheduled[2]


def test_a_long_list_is_cut() -> None:
    files = [DestroyedFile(digest=f"{number:064x}", kind="other") for number in range(60)]
    listed = rows(ErasureFacts(destroyed=files, scheduled=[]))
    assert len(listed) == 51
    assert listed[-1][0] == "and 10 more, in the signed file"
