"""What a deletion was promised: its model's policy is frozen when the request is received.

Epsilon and level are the promise. Of a batch's frozen policies and the model's own the strictest epsilon and the
strictest level count: a later policy may demand more of requests that are waiting, never less. Rungs and seconds are
only the means, taken from the model's own policy: so an operator can allow what a failed deletion lacked, and retry it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store.deletions.lifecycle import OPEN
from service.store.tables import DeletionTarget
from vocabulary.levels import LEVELS


def freeze(session: Session, model_id: uuid.UUID, policy: Mapping[str, Any]) -> None:
    """Before a model's policy changes: leave it with every request that was received under it and is not done.

    Nothing is written when a request arrives. The caller holds the model's row, and so no request slips in between:
    each refers to that row, and waits.
    """
    received_under_it = (
        DeletionTarget.model_id == model_id,
        DeletionTarget.status.in_(OPEN),
        DeletionTarget.policy.is_(None),
    )
    # Locked in the order in which people's changes lock them (interventions.py), so that the two cannot deadlock.
    locking = select(DeletionTarget.deletion_id).where(*received_under_it).order_by(DeletionTarget.deletion_id)
    session.execute(locking.with_for_update()).all()
    session.execute(update(DeletionTarget).where(*received_under_it).values(policy=dict(policy)))


def demanded(session: Session, batch_id: uuid.UUID, current: Mapping[str, Any]) -> dict[str, Any]:
    """What a version must meet that forgets this batch."""
    frozen = select(DeletionTarget.policy).where(
        DeletionTarget.batch_id == batch_id, DeletionTarget.policy.is_not(None)
    )
    return strictest(current, [policy for policy in session.scalars(frozen) if policy is not None])


def strictest(current: Mapping[str, Any], frozen: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    demands = [current, *frozen]
    level = max((policy["level"] for policy in demands), key=LEVELS.index)
    rungs = list(current["rungs"])
    if level == "retrained" and "retrain" not in rungs:
        rungs.append("retrain")  # nothing else can keep this promise
    return {**current, "epsilon": min(policy["epsilon"] for policy in demands), "level": level, "rungs": rungs}
