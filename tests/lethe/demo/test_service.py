"""The service of the demo where it does not start; tests/end_to_end/test_demo.py runs one that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.demo.service import ServiceFailed, await_ready, run_service


def test_a_service_that_ends_at_once_is_reported_with_its_reason(tmp_path: Path) -> None:
    settings = {"LETHE_LEASE_SECONDS": "soon"}
    with run_service(tmp_path, settings) as service, pytest.raises(ServiceFailed, match="LETHE_LEASE_SECONDS"):
        await_ready(service)
    assert service.process.returncode not in (None, 0)
