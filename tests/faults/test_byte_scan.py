from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.faults.byte_scan import files_with

ROWS = np.random.default_rng(5).normal(size=(6, 2))


@pytest.mark.parametrize("offset", range(9))
def test_a_number_is_found_at_every_offset(tmp_path: Path, offset: int) -> None:
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / ".draft"
    file.write_bytes(b"\x01" * offset + ROWS[4, 1].tobytes() + b"\x02" * 3)
    assert list(files_with(ROWS, [tmp_path])) == [file]


def test_other_rows_and_parts_of_numbers_are_not_found(tmp_path: Path) -> None:
    others = np.random.default_rng(6).normal(size=(5000, 2))
    content = {"rows": others.tobytes(), "half": ROWS[0, 0].tobytes()[:7], "end": ROWS.tobytes()[1:8], "empty": b""}
    for name, value in content.items():
        (tmp_path / name).write_bytes(value)
    assert list(files_with(ROWS, [tmp_path])) == []
    assert list(files_with(ROWS[:0], [tmp_path])) == []
    with (tmp_path / "rows").open("ab") as file:
        file.write(ROWS[2].tobytes())
    assert [path.name for path in files_with(ROWS, [tmp_path])] == ["rows"]
