from __future__ import annotations

import uuid

import pytest

from service.schemas.callbacks import callback_out
from service.store.states import CallbackStatus
from service.store.tables import Callback, now


def callback(status: CallbackStatus) -> Callback:
    return Callback(
        id=uuid.uuid4(),
        deletion_id=uuid.uuid4(),
        sequence=2,
        url="https://user:secret@compliance.example/hook?key=secret",
        message={"status": "completed"},
        status=status,
        attempts=3,
        not_before=now(),
        created_at=now(),
    )


@pytest.mark.parametrize("status", CallbackStatus)
def test_only_pending_callbacks_have_a_next_attempt(status: CallbackStatus) -> None:
    answer = callback_out(callback(status))
    assert (answer.next_attempt_at is not None) == (status is CallbackStatus.PENDING)


def test_the_url_is_reduced_to_its_host() -> None:
    text = callback_out(callback(CallbackStatus.DEAD)).model_dump_json(by_alias=True)
    assert '"host":"compliance.example"' in text
    assert '"told":"completed"' in text
    assert "secret" not in text
