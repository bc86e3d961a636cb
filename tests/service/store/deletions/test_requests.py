from __future__ import annotations

import uuid

from service.store.deletions.requests import DeletionRequest, OpenDsrReference


def test_a_reference_is_known_by_caller_and_id() -> None:
    request_id = uuid.uuid4()
    assert OpenDsrReference("acme", request_id, bytes).key == ("acme", request_id)


def test_requests_have_bodies_of_their_own_and_do_not_print_their_content() -> None:
    first, second = (DeletionRequest("acme", "gdpr", [], None, "request-1", 0.0, content=b"digest") for _ in range(2))
    assert first.body_id != second.body_id
    assert "digest" not in repr(first)
