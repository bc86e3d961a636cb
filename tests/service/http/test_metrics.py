from __future__ import annotations

from datetime import timedelta

import pytest

from service.http.metrics import Metrics
from service.store.database import Database
from service.store.tables import now
from tests.service.deletion_rows import add_rows

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def render(metrics: Metrics, database: Database) -> dict[str, float]:
    with database.reading() as session:
        lines = metrics.render(session).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_gauges_show_the_database_at_scrape_time(database: Database) -> None:
    metrics = Metrics()
    assert render(metrics, database)['lethe_deletions{status="pending"}'] == 0
    timestamp = now()
    add_rows(database, 2, due_at=timestamp - timedelta(days=1), received_at=timestamp - timedelta(days=30))
    add_rows(database, 3, status="completed", due_at=timestamp + timedelta(days=1))
    values = render(metrics, database)
    assert values['lethe_deletions{status="pending"}'] == 2
    assert values['lethe_deletions{status="completed"}'] == 3
    assert (values["lethe_deletions_overdue"], values["lethe_deletions_due_soon"]) == (2, 0)
    assert values["lethe_oldest_pending_seconds"] == pytest.approx(30 * 86_400, abs=60)


def test_two_registries_do_not_collide(database: Database) -> None:
    first, second = Metrics(), Metrics()
    first.requests.labels("GET", "/healthz", 200).inc()
    name = 'lethe_http_requests_total{method="GET",route="/healthz",status="200"}'
    assert render(first, database)[name] == 1
    assert name not in render(second, database)
