"""Policies promised to deletions: the model's policy when the request was received.

Epsilon, level and reference are the promise. A batch must meet the strictest of each among its frozen policies and the
model's own: a later policy can ask more of waiting requests, never less. Rungs and seconds are only
the means and come from the model's own policy, so that an operator can allow more and retry a failed deletion.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.store.deletions.lifecycle import OPEN_STATUSES
from service.store.tables import DeletionTarget
from vocabulary.levels import LEVELS
from vocabulary.references import DEFAULT_REFERENCE, REFERENCES


def freeze(session: Session, model_id: uuid.UUID, policy: Mapping[str, Any]) -> None:
    """Copy the model's policy to every open request received under it. Called before the policy changes.

    So nothing needs to be written when a request arrives. The caller holds the model's row. New requests refer to that
    row and wait, so none is missed.
    """
    open_without_policy = (
        DeletionTarget.model_id == model_id,
        DeletionTarget.status.in_(OPEN_STATUSES),
        DeletionTarget.policy.is_(None),
    )
    # The same lock order as people's changes (deletions/interventions.py), so that the two cannot deadlock.
    locking = select(DeletionTarget.deletion_id).where(*open_without_policy).order_by(DeletionTarget.deletion_id)
    session.execute(locking.with_for_update()).all()
    session.execute(update(DeletionTarget).where(*open_without_policy).values(policy=dict(policy)))


def required_policy(session: Session, batch_id: uuid.UUID, current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy that the batch's version must meet."""
    frozen = select(DeletionTarget.policy).where(
        DeletionTarget.batch_id == batch_id, DeletionTarget.policy.is_not(None)
    )
    return strictest_policy(current, [policy for policy in session.scalars(frozen) if policy is not None])


def strictest_policy(current: Mapping[str, Any], frozen: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `current` with the smallest epsilon, the highest level and the strongest reference of all policies."""
    policies = [current, *frozen]
    level = max((policy["level"] for policy in policies), key=LEVELS.index)
    rungs = list(current["rungs"])
    if level == "retrained" and "retrain" not in rungs:
        rungs.append("retrain")  # nothing else can keep this promise
    return {
        **current,
        "epsilon": min(policy["epsilon"] for policy in policies),
        "level": level,
        "rungs": rungs,
        # A policy from before references existed asked for the posterior.
        "reference": max((policy.get("reference", DEFAULT_REFERENCE) for policy in policies), key=REFERENCES.index),
    }
