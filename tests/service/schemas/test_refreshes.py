from __future__ import annotations

import uuid

from service.schemas.refreshes import refresh_out
from service.store.states import RefreshStatus
from service.store.tables import Refresh, now


def test_a_failed_refresh_says_why() -> None:
    columns = {
        "phase": "checking",
        "percent": 100.0,
        "started_at": now(),
        "finished_at": now(),
        "failure": "too narrow",
    }
    refresh = refresh_out(Refresh(id=uuid.uuid4(), status=RefreshStatus.FAILED, worker="host:1", **columns))
    assert (refresh.status, refresh.phase, refresh.failure) == ("failed", "checking", "too narrow")
    assert "worker" not in refresh.model_dump()
