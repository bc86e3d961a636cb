"""Refreshes that an operator requests, whatever the floor says."""

from __future__ import annotations

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.errors import NotFound, NotRefreshable
from service.store.models.registry import current_version, require_existing
from service.store.refreshes.ending import find_unfinished
from service.store.refreshes.lifecycle import add_refresh
from service.store.tables import Model, Refresh


def request_refresh(session: Session, model_id: uuid.UUID, actor: str) -> Refresh:
    """Return the model's waiting refresh: the one that waits or runs already, or a new one."""
    model = session.scalar(select(Model).where(Model.id == model_id).with_for_update(key_share=True))
    if model is None:
        raise NotFound(f"model {model_id} not found")
    require_existing(model)
    if model.posterior_kind != "samples":
        raise NotRefreshable(
            f"model {model_id} has a posterior of kind {model.posterior_kind}, which has no chains to continue; only "
            "sample sets are refreshed"
        )
    refresh = find_unfinished(session, model_id)
    if refresh is None:
        refresh = add_refresh(session, current_version(session, model_id))
        audit.record(session, actor, "refresh.requested", refresh.id, model=str(model_id))
    return refresh
