from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from pydantic import ValidationError

from service.schemas.deletions import (
    CANCELLABLE,
    RETRYING_IN_SMALLER_BATCH,
    WAITING_FOR_GPU,
    WHAT_HAPPENS_NEXT,
    DeletionCreate,
    DeletionQuery,
    absence_path,
    deletion_out,
    page_out,
)
from service.store.deletions.views import DeletionRow, DeletionView, NamedRecord, TargetView
from service.store.paging import Page, Position
from service.store.states import DeletionStatus, Device
from service.store.tables import now

MODEL_ID = uuid.uuid4()


def view(status: DeletionStatus, *targets: TargetView, days_left: float = 3.5) -> DeletionView:
    timestamp = now()
    row = DeletionRow(
        id=uuid.uuid4(),
        caller="acme",
        regulation="gdpr",
        status=status,
        outcome=None,
        request_id="request-1",
        callback_urls=None,
        received_at=timestamp - timedelta(days=1),
        due_at=timestamp + timedelta(days=days_left),
        completed_at=None,
        body_id=uuid.uuid4(),
        binding_at=timestamp - timedelta(hours=23),
    )
    return DeletionView(row, ["commitment"], targets, [NamedRecord(MODEL_ID, 7)])


@pytest.mark.parametrize(
    ("status", "days", "shown", "overdue"),
    [
        (DeletionStatus.PENDING, 3.5, 3, False),
        (DeletionStatus.FAILED, -0.5, -1, True),
        (DeletionStatus.COMPLETED, -0.5, None, False),
        (DeletionStatus.CANCELLED, 3.5, None, False),
    ],
)
def test_the_deadline_counts_while_a_deletion_is_open(
    status: DeletionStatus, days: float, shown: int | None, overdue: bool
) -> None:
    answer = deletion_out(view(status, days_left=days))
    assert (answer.days_left, answer.overdue) == (shown, overdue)


def test_the_next_step_depends_on_what_the_deletion_waits_for() -> None:
    pending = TargetView(MODEL_ID, DeletionStatus.PENDING)
    cases = {
        WAITING_FOR_GPU: TargetView(MODEL_ID, DeletionStatus.PENDING, device=Device.CUDA),
        RETRYING_IN_SMALLER_BATCH: TargetView(MODEL_ID, DeletionStatus.PENDING, batch_limit=1),
        WHAT_HAPPENS_NEXT[DeletionStatus.PENDING]: pending,
    }
    for text, target in cases.items():
        assert deletion_out(view(DeletionStatus.PENDING, target)).what_happens_next == text
    assert set(WHAT_HAPPENS_NEXT) == set(DeletionStatus)


def test_targets_name_their_certificates() -> None:
    certificate_id = uuid.uuid4()
    shown = deletion_out(
        view(DeletionStatus.COMPLETED, TargetView(MODEL_ID, "completed", certificate_id=certificate_id))
    )
    assert shown.models[0].certificate == f"/api/v1/certificates/{certificate_id}"
    assert shown.absence is None
    assert [record.model_dump() for record in shown.records] == [{"model": MODEL_ID, "record": 7}]


@pytest.mark.parametrize(
    "body",
    [{}, {"subjects": []}, {"subjects": [], "records": []}, {"records": [{"model": str(MODEL_ID), "record": -1}]}],
)
def test_a_request_names_subjects_or_records(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DeletionCreate.model_validate(body)


def test_filters_become_criteria() -> None:
    query = DeletionQuery(regulation="ccpa", model=MODEL_ID, status=[DeletionStatus.FAILED], overdue=True)
    criteria = query.criteria("acme", query.status)
    assert (criteria.caller, criteria.regulation, criteria.model_id, criteria.overdue) == (
        "acme",
        "ccpa",
        MODEL_ID,
        True,
    )
    assert criteria.statuses == [DeletionStatus.FAILED]
    assert query.window.after is None


def test_a_page_carries_its_cursor() -> None:
    position = Position(now(), uuid.uuid4())
    page = page_out(Page([view(DeletionStatus.PENDING)], position))
    assert page.next_cursor == position.encode()
    assert DeletionQuery(cursor=page.next_cursor).window.after is not None


def test_a_concealed_deletion_shows_neither_models_nor_outcome() -> None:
    held = view(DeletionStatus.PENDING, TargetView(MODEL_ID, DeletionStatus.PENDING, device=Device.CUDA))
    absent = view(DeletionStatus.PENDING)
    outcome = "No model holds a record of this subject."
    absent = replace(absent, deletion=replace(cast(DeletionRow, absent.deletion), outcome=outcome))
    before = absent.deletion.received_at
    shown = [deletion_out(each.as_shown_to_caller(before)) for each in (held, absent)]
    for answer in shown:
        assert (answer.models, answer.outcome, answer.absence) == ([], None, None)
        assert answer.what_happens_next == CANCELLABLE
    assert deletion_out(absent).outcome == outcome
    assert deletion_out(held.as_shown_to_caller(now())).models != []


def test_there_is_a_certificate_of_absence_only_once_completed() -> None:
    assert absence_path(view(DeletionStatus.PENDING)) is None
    assert absence_path(view(DeletionStatus.CANCELLED)) is None
    completed = view(DeletionStatus.COMPLETED)
    assert absence_path(completed) == f"/api/v1/deletions/{completed.deletion.id}/absence"
