"""Refreshes as shown to people, beside their models. Jobs list them all (batches/listing.py)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from service.store.tables import Refresh


def latest_refreshes(session: Session, model_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, Refresh]:
    """Map models to their latest refresh. Models without one are missing."""
    newest = (
        select(Refresh.model_id, func.max(Refresh.started_at).label("started_at"))
        .where(Refresh.model_id.in_(model_ids))
        .group_by(Refresh.model_id)
        .subquery()
    )
    is_newest = and_(Refresh.model_id == newest.c.model_id, Refresh.started_at == newest.c.started_at)
    return {refresh.model_id: refresh for refresh in session.scalars(select(Refresh).join(newest, is_newest))}
