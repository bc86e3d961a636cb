from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from service.intake.bulk import (
    LINES_PER_SLICE,
    MAX_LINES,
    NAMES_PER_SLICE,
    Line,
    make_submissions,
    read_lines,
    slice_lines,
    split_lines,
    write_failure,
    write_lines,
)
from service.settings import Settings
from service.store.database import Database
from service.store.deletions.requests import DeletionRequest
from service.store.errors import DiskFull, NotFound
from service.store.signing.keys import open_signer
from tests import samples
from tests.service.intake.test_parsing import PARSER

GOOD = json.dumps({"subjects": [samples.person(1)]}).encode()


def read(content: bytes) -> Sequence[Line]:
    return read_lines(split_lines(content), PARSER.parse)


def test_lines_keep_their_numbers_and_errors_hold_no_input() -> None:
    lines = read(b"\n" + GOOD + b'\n\n{"subjects": "person-9"}\n')
    assert [line.number for line in lines] == [2, 4]
    good, bad = (line.content for line in lines)
    assert isinstance(good, DeletionRequest)
    assert isinstance(bad, ValidationError)
    assert "person-9" not in str(bad)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"{}\n" * (MAX_LINES + 1)], ids=["none", "blank", "too many"])
def test_the_number_of_lines_is_limited(content: bytes) -> None:
    with pytest.raises(RequestValidationError):
        split_lines(content)


def test_each_line_is_answered_in_order(settings: Settings, database: Database) -> None:
    view = samples.request_deletion(settings, database, 1)
    lines = read(b"{\n" + GOOD + b"\n" + GOOD)
    signer = open_signer(settings, database)
    results = [json.loads(line) for line in write_lines(lines, [NotFound("no model"), view], signer).splitlines()]
    assert [(result["line"], result["status"]) for result in results] == [(1, 422), (2, 404), (3, 201)]
    assert results[1]["problem"]["detail"] == "no model"
    assert results[2]["absence"] == f"/api/v1/deletions/{view.deletion.id}/absence"


def test_slices_are_limited_by_lines_and_by_names() -> None:
    people = [samples.person(number) for number in range(100)]
    long_line = json.dumps({"subjects": people}).encode()
    short = [len(part) for part in slice_lines(read(b"\n".join([GOOD] * (2 * LINES_PER_SLICE + 1))))]
    long = [len(part) for part in slice_lines(read(b"\n".join([long_line] * 25)))]
    assert short == [LINES_PER_SLICE, LINES_PER_SLICE, 1]
    assert long == [NAMES_PER_SLICE // 100, NAMES_PER_SLICE // 100, 5]


def test_slices_have_keys_of_their_own_that_are_bound_to_the_whole_body(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.intake.bulk.LINES_PER_SLICE", 2)
    signer = open_signer(settings, database)

    def uses(*lines: bytes, key: str = "7d444840-9dc0-41d1-b245-5ffdce74fad2") -> list[tuple[str, bytes]]:
        submissions = make_submissions(read(b"\n".join(lines)), PARSER, key, signer)
        return [(submission.key.key, submission.key.content) for submission in submissions if submission.key]

    other = json.dumps({"subjects": [samples.person(2)]}).encode()
    first, changed = uses(GOOD, GOOD, GOOD, GOOD), uses(GOOD, GOOD, GOOD, other)
    assert uses(GOOD, GOOD, GOOD, GOOD) == first
    assert len({key for key, _ in first}) == 2
    assert [key for key, _ in changed] == [key for key, _ in first]
    assert not {content for _, content in changed} & {content for _, content in first}
    # Under a guessable key, the mark of a slice must not outlive people of another.
    marked, remarked = uses(GOOD, GOOD, GOOD, GOOD, key="key"), uses(GOOD, GOOD, GOOD, other, key="key")
    assert marked[0] == remarked[0]
    assert marked[1] != remarked[1]


def test_a_slice_that_was_not_stored_says_so_for_each_line() -> None:
    lines = read(GOOD + b"\n\n" + GOOD)
    results = [json.loads(line) for line in write_failure(lines, DiskFull("full")).splitlines()]
    assert [(result["line"], result["status"]) for result in results] == [(1, 507), (3, 507)]
    assert "not stored" in results[0]["problem"]["detail"]
    with pytest.raises(RuntimeError):
        write_failure(lines, RuntimeError("a bug"))
