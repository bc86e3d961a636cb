from __future__ import annotations

import csv

import pytest

from service.http.deletion_csv import HEADER, deletions_csv
from service.settings import Settings
from service.store.database import Database
from service.store.deletions.listing import Criteria
from tests import samples

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_each_deletion_is_a_row(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    held = samples.request_deletion(settings, database, 1, 2)
    absent = samples.request_deletion(settings, database, 999)
    rows = list(csv.DictReader("".join(deletions_csv(database, Criteria())).splitlines()))
    assert [row["id"] for row in rows] == [str(absent.deletion.id), str(held.deletion.id)]
    assert rows[1]["subjects"] == " ".join(held.commitments)
    assert (rows[1]["models"], rows[1]["overdue"], rows[1]["outcome"]) == (f"{model_id}:pending", "false", "")
    assert (rows[0]["models"], rows[0]["days_left"]) == ("", "")


def test_without_matches_there_is_a_header(database: Database) -> None:
    assert "".join(deletions_csv(database, Criteria())).strip() == ",".join(HEADER)
