from __future__ import annotations

import csv
import io
import uuid
from datetime import datetime, timedelta
from statistics import median

import pytest
from sqlalchemy import func, insert, select

from service.routes.audit import CSV_COLUMNS, CSV_PAGE_ROWS
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Base, Certificate, Deletion
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_jobs import UNKNOWN, publish_sample

BOUNDS, MODELS = "/api/v1/audit/bounds", "/api/v1/audit/models"


@pytest.mark.parametrize("path", [BOUNDS, MODELS])
def test_operators_and_auditors_only(api: Api, path: str) -> None:
    expected = {None: 401, Role.COMPLIANCE: 403, Role.ENGINEER: 403, Role.OPERATOR: 200, Role.AUDITOR: 200}
    assert {role: api.call(role, "GET", path).status_code for role in expected} == expected


def test_a_bound_repeats_the_signed_values(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database, seconds=60)
    stated = {"epsilon_reverse": None, "interval": [1e-9, 1e-8], "reference_kind": "posterior"}
    certificate_id = publish_sample(settings, database, model_id, 1, 1e-8, **stated)
    with database.reading() as session:
        certificate = session.get_one(Certificate, certificate_id)
        deletion = session.get_one(Deletion, certificate.deletion_id)
    (bound,) = api.call(Role.AUDITOR, "GET", BOUNDS).json()["items"]
    times = {name: bound.pop(name) for name in ("received_at", "issued_at")}
    assert bound == {
        "certificate_id": str(certificate_id),
        "deletion_id": str(deletion.id),
        "model_id": str(model_id),
        "epsilon": 1e-8,
        "epsilon_reverse": None,
        "level": "proved",
        "reference_kind": "posterior",
        "interval": [1e-9, 1e-8],
        "rung": "newton",
        "solver": "cholesky",
        "records_before": 40,
        "records_after": 36,
        "policy": {"epsilon": 1e-6, "level": "proved", "rungs": samples.RUNGS, "seconds": 60, **samples.REFERENCE},
    }
    expected = {"received_at": deletion.received_at, "issued_at": certificate.issued_at}
    for name, timestamp in expected.items():
        shown = datetime.fromisoformat(times[name])  # without a fraction where that is 0
        assert shown.isoformat(timespec="milliseconds") == timestamp.isoformat(timespec="milliseconds")
        assert times[name].endswith("Z")


def publish_three(settings: Settings, database: Database, model_id: uuid.UUID) -> list[Certificate]:
    """Oldest first: 3e-8 proved, 0 retrained, 2e-8 proved."""
    for person, (epsilon, level) in enumerate([(3e-8, "proved"), (0.0, "retrained"), (2e-8, "proved")]):
        publish_sample(settings, database, model_id, person, epsilon, level)
    with database.reading() as session:
        query = select(Certificate).where(Certificate.model_id == model_id).order_by(Certificate.issued_at)
        return list(session.scalars(query))


def test_filters_and_order(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    _, second, third = publish_three(settings, database, model_id)
    expected: list[tuple[dict[str, object], list[float]]] = [
        ({}, [2e-8, 0.0, 3e-8]),
        ({"model": str(model_id)}, [2e-8, 0.0, 3e-8]),
        ({"model": str(UNKNOWN)}, []),
        ({"level": "proved"}, [2e-8, 3e-8]),
        ({"level": "estimated"}, []),
        ({"epsilon_above": 1e-8}, [2e-8, 3e-8]),
        ({"epsilon_above": 0}, [2e-8, 3e-8]),
        ({"issued_from": second.issued_at.isoformat()}, [2e-8, 0.0]),
        ({"issued_to": second.issued_at.isoformat()}, [3e-8]),
        ({"issued_from": second.issued_at.isoformat(), "issued_to": third.issued_at.isoformat()}, [0.0]),
        ({"issued_from": (third.issued_at + timedelta(seconds=1)).isoformat()}, []),
        ({"level": "proved", "epsilon_above": 2e-8}, [3e-8]),
    ]
    for query, epsilons in expected:
        items = api.call(Role.AUDITOR, "GET", BOUNDS, params=query).json()["items"]
        assert [item["epsilon"] for item in items] == epsilons, query


def test_pages_keep_the_filter(api: Api, settings: Settings, database: Database) -> None:
    publish_three(settings, database, samples.register_sample(settings, database))
    query: dict[str, object] = {"limit": 1, "level": "proved"}
    first = api.call(Role.AUDITOR, "GET", BOUNDS, params=query).json()
    second = api.call(Role.AUDITOR, "GET", BOUNDS, params={**query, "cursor": first["next_cursor"]}).json()
    assert [item["epsilon"] for item in first["items"] + second["items"]] == [2e-8, 3e-8]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("level", "none"),
        ("epsilon_above", "-1"),
        ("epsilon_above", "nan"),
        ("issued_from", "2026-01-01T00:00:00"),
        ("issued_to", "0001-01-01T00:00:00+14:00"),
        ("model", "canary"),
        ("cursor", "canary"),
    ],
)
def test_a_bad_query_is_named(api: Api, name: str, value: str) -> None:
    answer = api.call(Role.AUDITOR, "GET", BOUNDS, params={name: value})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == f"query.{name}"
    assert "canary" not in answer.text


def read_csv(api: Api, **query: object) -> list[dict[str, str]]:
    answer = api.call(Role.AUDITOR, "GET", BOUNDS, headers={"Accept": "text/csv"}, params=query)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["vary"] == "Accept"
    assert "content-length" not in answer.headers  # streamed
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_csv_has_the_same_values(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    publish_sample(settings, database, model_id, 1, 1e-8, interval=[1e-9, 1e-8])
    (row,) = read_csv(api)
    (bound,) = api.call(Role.AUDITOR, "GET", BOUNDS).json()["items"]
    interval, policy = bound.pop("interval"), bound.pop("policy")
    assert {name: row[name] for name in bound} == {
        name: "" if value is None else str(value) for name, value in bound.items()
    }
    assert [float(row["interval_low"]), float(row["interval_high"])] == interval
    assert (float(row["policy_epsilon"]), row["policy_level"]) == (policy["epsilon"], policy["level"])


def test_csv_without_a_match_is_the_header(api: Api) -> None:
    answer = api.call(Role.AUDITOR, "GET", BOUNDS, headers={"Accept": "text/csv"})
    assert answer.text == ",".join(CSV_COLUMNS) + "\r\n"


def test_csv_covers_several_pages(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    first = publish_sample(settings, database, model_id, 1)
    count = 2 * CSV_PAGE_ROWS + 1
    multiply(database, first, count)
    rows = read_csv(api, limit=1)
    assert len({row["certificate_id"] for row in rows}) == len(rows) == count
    times = [row["issued_at"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert len(read_csv(api, level="retrained")) == 0


def multiply(database: Database, certificate_id: uuid.UUID, count: int) -> None:
    """Copy a certificate for other deletions until there are `count`, each a second older than the previous."""
    with database.writing() as session:
        certificate = session.get_one(Certificate, certificate_id)
        deletion = session.get_one(Deletion, certificate.deletion_id)
        ids = [uuid.uuid4() for _ in range(1, count)]
        session.execute(insert(Deletion), [{**columns(deletion), "id": copy} for copy in ids])
        copies = [
            {"id": uuid.uuid4(), "deletion_id": copy, "issued_at": certificate.issued_at - timedelta(seconds=age)}
            for age, copy in enumerate(ids, start=1)
        ]
        session.execute(insert(Certificate), [{**columns(certificate), **copy} for copy in copies])


def columns(row: Base) -> dict[str, object]:
    return {column.name: getattr(row, column.name) for column in row.__table__.columns}


def test_the_summary_of_each_model(api: Api, settings: Settings, database: Database) -> None:
    # In this order, since a request reaches every model that holds the person at that time.
    three = samples.register_sample(settings, database)
    issued = publish_three(settings, database, three)
    two = samples.register_sample(settings, database, level="estimated")
    for person, (epsilon, level) in enumerate([(4e-7, "proved"), (1e-7, "estimated")], start=5):
        publish_sample(settings, database, two, person, epsilon, level, interval=[0.0, epsilon])
    none = samples.register_sample(settings, database)
    page = api.call(Role.AUDITOR, "GET", MODELS).json()
    assert [item["model_id"] for item in page["items"]] == [str(none), str(two), str(three)]
    empty, pair, triple = page["items"]
    assert empty == {
        "model_id": str(none),
        "name": "sample",
        "count": 0,
        "worst_epsilon": None,
        "median_epsilon": None,
        "levels": {},
        "latest_issued_at": None,
    }
    assert (pair["count"], pair["levels"]) == (2, {"estimated": 1, "proved": 1})
    assert (pair["worst_epsilon"], pair["median_epsilon"]) == (4e-7, pytest.approx(2.5e-7, rel=1e-12))
    assert (triple["count"], triple["levels"]) == (3, {"proved": 2, "retrained": 1})
    assert (triple["worst_epsilon"], triple["median_epsilon"]) == (3e-8, 2e-8)
    assert triple["latest_issued_at"] == issued[-1].issued_at.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_the_median_is_the_middle(settings: Settings, database: Database, count: int) -> None:
    from service.store.batches.listing import Window
    from service.store.certificates.listing import find_model_bounds_page

    model_id = samples.register_sample(settings, database)
    first = publish_sample(settings, database, model_id, 1)
    if count > 1:
        multiply(database, first, count)
    with database.writing() as session:
        for number, certificate in enumerate(session.scalars(select(Certificate).order_by(Certificate.id)), start=1):
            certificate.epsilon = 1 / number
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Certificate)) == count
        (bounds,) = find_model_bounds_page(session, Window(10)).items
    assert bounds.median_epsilon == pytest.approx(median(1 / number for number in range(1, count + 1)), rel=1e-12)
    assert (bounds.count, bounds.worst_epsilon) == (count, 1.0)
