from __future__ import annotations

import json

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from service.intake.bulk import MAX_LINES, read_lines, write_lines
from service.settings import Settings
from service.store.database import Database
from service.store.deletions.requests import DeletionRequest
from service.store.errors import NotFound
from service.store.signing.keys import open_signer
from tests import samples
from tests.service.intake.test_parsing import PARSER

GOOD = json.dumps({"subjects": [samples.person(1)]}).encode()


def test_lines_keep_their_numbers_and_errors_hold_no_input() -> None:
    lines = read_lines(b"\n" + GOOD + b'\n\n{"subjects": "person-9"}\n', PARSER.parse)
    assert [line.number for line in lines] == [2, 4]
    good, bad = (line.content for line in lines)
    assert isinstance(good, DeletionRequest)
    assert isinstance(bad, ValidationError)
    assert "person-9" not in str(bad)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"{}\n" * (MAX_LINES + 1)], ids=["none", "blank", "too many"])
def test_the_number_of_lines_is_limited(content: bytes) -> None:
    with pytest.raises(RequestValidationError):
        read_lines(content, PARSER.parse)


def test_each_line_is_answered_in_order(settings: Settings, database: Database) -> None:
    view = samples.request_deletion(settings, database, 1)
    lines = read_lines(b"{\n" + GOOD + b"\n" + GOOD, PARSER.parse)
    signer = open_signer(settings, database)
    results = [json.loads(line) for line in write_lines(lines, [NotFound("no model"), view], signer).splitlines()]
    assert [(result["line"], result["status"]) for result in results] == [(1, 422), (2, 404), (3, 201)]
    assert results[1]["problem"]["detail"] == "no model"
    assert results[2]["absence"] == f"/api/v1/deletions/{view.deletion.id}/absence"
