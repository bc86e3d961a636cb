from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from service.intake import subject_stream
from service.intake.subject_stream import LONGEST_ITEM, PIECE_BYTES, JsonList, count_rows, read_subjects
from service.store.errors import InvalidRegistration

ADA = {"identity_type": "email", "identity_value": "ada@example.org"}


def read(content: bytes | list[Any], rows: int = 1_000_000) -> list[str]:
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return [subject.identity_value for subject in read_subjects(encoded, rows)]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, PIECE_BYTES])
def test_the_size_of_the_pieces_does_not_matter(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_stream, "PIECE_BYTES", piece)
    monkeypatch.setattr(subject_stream, "LONGEST_ITEM", 200)
    values = ["ada", "größe", 'q"uote', "back\\slash", "]},{[", "\U0001f600", " "]
    subjects = [{"identity_type": "email", "identity_value": value} for value in values]
    for text in (json.dumps(subjects), json.dumps(subjects, indent=3), json.dumps(subjects, ensure_ascii=False)):
        assert read(f" \n{text}\r\n\t".encode()) == values


def test_an_empty_list_has_no_subjects() -> None:
    assert read(b" [ ] ") == []


INVALID: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "subjects"),
    "an object": (b"{}", "subjects"),
    "a mark of byte order": (b"\xef\xbb\xbf[]", "subjects"),
    "no end": (b'[{"identity_type": "email", "identity_value": "ada"}', "subjects"),
    "an unfinished item": (b'[{"identity_type": "email", ', "subjects.0"),
    "a trailing comma": (b'[{"identity_type": "email", "identity_value": "ada"},]', "subjects.1"),
    "text behind the list": (b"[] []", "subjects"),
    "no comma": (b'[{"identity_type": "email", "identity_value": "a"} {}]', "subjects"),
    "a number": (b"[1]", "subjects.0"),
    "not UTF-8": (b"[\xff]", "subjects"),
    "cut in a character": (b'[{"identity_type": "\xc3', "subjects"),
    "the same key twice": (b'[{"identity_type": "a", "identity_type": "b", "identity_value": "c"}]', "subjects.0"),
    "no number": (b'[{"identity_type": "a", "identity_value": NaN}]', "subjects.0"),
    "a wrong type": (b'[{"identity_type": "a", "identity_value": 7}]', "subjects.0.identity_value"),
    "a missing field": (b'[{"identity_type": "a"}]', "subjects.0.identity_value"),
    "an unknown field": (b'[{"identity_type": "a", "identity_value": "b", "c": 1}]', "subjects.0"),
    "too deep": (b'[{"identity_type": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]", "subjects.0"),
    "too long": (b'[{"identity_type": "' + b"a" * (2 * LONGEST_ITEM + PIECE_BYTES) + b'"}]', "subjects.0"),
}


@pytest.mark.parametrize(("content", "field"), INVALID.values(), ids=INVALID)
def test_an_invalid_list_is_refused_by_its_first_fault(content: bytes, field: str) -> None:
    with pytest.raises(InvalidRegistration) as refusal:
        read(content)
    assert refusal.value.field == field


def test_the_error_names_the_index_and_repeats_nothing() -> None:
    with pytest.raises(InvalidRegistration) as refusal:
        read([ADA, ADA, {**ADA, "identity_type": "canary@example.org"}])
    assert refusal.value.field == "subjects.2.identity_type"
    assert "canary" not in str(refusal.value)


def test_reading_stops_at_the_first_subject_without_a_row() -> None:
    with pytest.raises(InvalidRegistration, match="more subjects than the 2 rows"):
        read(json.dumps([ADA] * 3).encode()[:-1] + b", broken", rows=2)


def test_a_long_list_takes_the_memory_of_a_piece() -> None:
    content = b"[" + b",".join([json.dumps(ADA).encode()] * 30_000) + b"]"
    tracemalloc.start()
    count = sum(1 for _ in JsonList(content))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 30_000
    assert peak < 8 * PIECE_BYTES


def test_rows_are_counted_by_the_header() -> None:
    assert count_rows(save({"x": np.zeros((7, 2)), "y": np.zeros(7)})) == 7
    with pytest.raises(InvalidRegistration, match="safetensors"):
        count_rows(b"no tensors")
