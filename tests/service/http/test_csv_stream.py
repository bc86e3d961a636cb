from __future__ import annotations

import csv
import io

import pytest

from service.http.csv_stream import Cell, csv_chunks


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        (-1, "-1"),
        (None, ""),
        ("a = b", "a = b"),
        ('he said "no", twice\nand left', 'he said "no", twice\nand left'),
    ],
)
def test_no_cell_is_a_formula(cell: Cell, written: str) -> None:
    text = "".join(csv_chunks(["one", "two"], [[[cell, "x"]]]))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["one", "two"], [written, "x"]]


def test_each_page_is_a_chunk_of_its_own() -> None:
    assert list(csv_chunks(["n"], ([[n]] for n in range(3)))) == ["n\r\n", "0\r\n", "1\r\n", "2\r\n"]
