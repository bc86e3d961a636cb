"""Schemas of model versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from service.schemas.models import DatasetRoot
from service.store.models.registry import VersionView


class VersionOut(BaseModel):
    number: int
    posterior_sha256: str
    dataset_sha256: str
    dataset_root: DatasetRoot
    record_count: int
    readiness: dict[str, Any] | None
    draws: int | None = Field(description="Draws of a sample set; null for other posteriors.")
    effective_draws: float | None = Field(description="Even draws that they are worth with their weights.")
    created_at: datetime
    superseded_at: datetime | None = Field(
        description="Null for the current version, which a destroyed model does not have."
    )
    posterior_destroyed_at: datetime | None = Field(description="Null as long as the file exists.")


class VersionPage(BaseModel):
    items: list[VersionOut]
    next_cursor: str | None


def version_out(view: VersionView) -> VersionOut:
    version = view.version
    return VersionOut(
        number=version.number,
        posterior_sha256=version.posterior_digest,
        dataset_sha256=version.dataset_digest,
        dataset_root=version.dataset_root,
        record_count=version.record_count,
        readiness=version.readiness,
        draws=version.draws,
        effective_draws=version.effective_draws,
        created_at=version.created_at,
        superseded_at=version.superseded_at,
        posterior_destroyed_at=view.posterior.destroyed_at,
    )
