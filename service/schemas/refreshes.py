"""Schema of a refresh, as shown beside its model."""

from __future__ import annotations

import uuid
from datetime import datetime

from pydantic import BaseModel, Field

from service.store.states import RefreshStatus
from service.store.tables import Refresh


class RefreshOut(BaseModel):
    id: uuid.UUID
    status: RefreshStatus
    phase: str = Field(description="What its worker is doing; the last phase once ended.")
    percent: float
    started_at: datetime
    finished_at: datetime | None
    failure: str | None = Field(description="Why it failed or was abandoned.")


def refresh_out(refresh: Refresh) -> RefreshOut:
    return RefreshOut.model_validate(refresh, from_attributes=True)
