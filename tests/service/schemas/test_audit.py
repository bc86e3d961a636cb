from __future__ import annotations

import uuid
from datetime import UTC, date, datetime

import pytest

from service.schemas.audit import bound_out, model_bounds_out, summary_out
from service.settings import Settings
from service.store.certificates.listing import BoundFilter, ModelBounds, find_bound_page
from service.store.database import Database
from service.store.deletions.summaries import Counts, Summary
from service.store.paging import Window
from tests import samples
from tests.service.routes.test_jobs import publish_sample

TIMESTAMP = datetime(2030, 3, 31, tzinfo=UTC)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_bound_repeats_what_the_certificate_states(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    certificate_id = publish_sample(settings, database, model_id, 1, epsilon=1e-8)
    with database.reading() as session:
        (bound,) = find_bound_page(session, BoundFilter(), Window(10)).items
        shown = bound_out(bound)
    assert (shown.certificate_id, shown.model_id, shown.epsilon) == (certificate_id, model_id, 1e-8)
    assert shown.records_before - shown.records_after == samples.ROWS_EACH
    assert shown.policy["epsilon"] == 1e-6
    assert shown.received_at <= shown.issued_at


def test_a_model_without_certificates_has_no_numbers() -> None:
    shown = model_bounds_out(ModelBounds(uuid.uuid4(), "churn", 0, None, None, {}, None))
    assert (shown.name, shown.count, shown.worst_epsilon, shown.levels) == ("churn", 0, None, {})


def test_a_summary_counts_by_regulation() -> None:
    counts = {"gdpr": Counts(5, 4, 1, 0, 2), "ccpa": Counts()}
    shown = summary_out(Summary(date(2030, 3, 30), TIMESTAMP, TIMESTAMP, counts))
    assert shown.regulations["gdpr"].model_dump() == {
        "received": 5,
        "completed": 4,
        "failed": 1,
        "overdue": 0,
        "due_soon": 2,
    }
    assert shown.regulations["ccpa"].received == 0
