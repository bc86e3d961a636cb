from __future__ import annotations

from structlog.testing import capture_logs

from service.store.errors import KeyInactive
from worker.key_problems import KeyReport


def test_a_reason_is_reported_once_until_it_changes_or_ends() -> None:
    report = KeyReport("sequencer")
    with capture_logs() as lines:
        for reason in ("retired", "retired", "revoked"):
            report.wait(KeyInactive(reason))
        report.clear()
        report.wait(KeyInactive("revoked"))
    assert [(line["loop"], line["reason"]) for line in lines] == [
        ("sequencer", reason) for reason in ("retired", "revoked", "revoked")
    ]
