"""The certified bounds, as auditors read them: from the certificates' rows and from what was signed, stored once."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.store.models import registry as models
from service.store.paging import Page, Position, Window, cut, newest_first
from service.store.tables import Certificate


@dataclass(frozen=True)
class BoundFilter:
    """`issued_from` is included, `issued_to` is not, so that months next to each other share nothing."""

    model_id: uuid.UUID | None = None
    level: str | None = None
    issued_from: datetime | None = None
    issued_to: datetime | None = None
    epsilon_above: float | None = None


@dataclass(frozen=True)
class Bound:
    """What one certificate states. `predicate` is the signed part."""

    certificate: Certificate
    predicate: dict[str, Any]

    @property
    def received_at(self) -> datetime:
        return datetime.fromisoformat(self.predicate["received_at"])

    @property
    def last_rung(self) -> dict[str, Any]:
        """The one whose result was published: a worker stops climbing at the first that meets the policy."""
        rung: dict[str, Any] = self.predicate["rungs"][-1]
        return rung


@dataclass(frozen=True)
class ModelBounds:
    """All certificates of a model in a few numbers; None where it has no certificate."""

    model_id: uuid.UUID
    name: str
    count: int
    worst_epsilon: float | None
    median_epsilon: float | None
    levels: Mapping[str, int]
    latest_issued_at: datetime | None


def page(session: Session, wanted: BoundFilter, window: Window) -> Page[Bound]:
    query = newest_first(_matching(wanted), Certificate.issued_at, Certificate.id, window)
    found = cut(session.scalars(query).all(), window, lambda row: Position(row.issued_at, row.id))
    return Page([Bound(row, signed_predicate(row.bundle)) for row in found.items], found.end)


def page_of_models(session: Session, window: Window) -> Page[ModelBounds]:
    """Every model, newest first, also those that had nothing to certify yet."""
    found = models.page(session, window)
    names = {model.id: model.name for model, _ in found.items}
    return Page(_aggregate(session, names), found.end)


def signed_predicate(bundle: str) -> dict[str, Any]:
    """What a bundle says. Its signature is not checked here: the row is ours, and `lethe verify` checks it."""
    payload = base64.b64decode(json.loads(bundle)["envelope"]["payload"])
    predicate: dict[str, Any] = json.loads(payload)["predicate"]
    return predicate


def _matching(wanted: BoundFilter) -> Select[Certificate]:
    query = select(Certificate)
    if wanted.model_id is not None:
        query = query.where(Certificate.model_id == wanted.model_id)
    if wanted.level is not None:
        query = query.where(Certificate.level == wanted.level)
    if wanted.issued_from is not None:
        query = query.where(Certificate.issued_at >= wanted.issued_from)
    if wanted.issued_to is not None:
        query = query.where(Certificate.issued_at < wanted.issued_to)
    if wanted.epsilon_above is not None:
        query = query.where(Certificate.epsilon > wanted.epsilon_above)
    return query


def _aggregate(session: Session, names: Mapping[uuid.UUID, str]) -> Sequence[ModelBounds]:
    certified = select(Certificate.model_id).where(Certificate.model_id.in_(names)).group_by(Certificate.model_id)
    totals = certified.add_columns(func.count(), func.max(Certificate.epsilon), func.max(Certificate.issued_at))
    by_model = {model_id: row for model_id, *row in session.execute(totals)}
    levels: dict[uuid.UUID, dict[str, int]] = {model_id: {} for model_id in names}
    by_level = certified.add_columns(Certificate.level, func.count()).group_by(Certificate.level)
    for model_id, level, number in session.execute(by_level.order_by(Certificate.level)):
        levels[model_id][level] = number
    medians = _medians(session, names)
    bounds = []
    for model_id, name in names.items():
        count, worst, latest = by_model.get(model_id, (0, None, None))
        bounds.append(ModelBounds(model_id, name, count, worst, medians.get(model_id), levels[model_id], latest))
    return bounds


def _medians(session: Session, model_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, float]:
    """The mean of the middle one or two: those of n whose doubled rank is n, n + 1 or n + 2. SQLite has no median."""
    ranked = (
        select(
            Certificate.model_id,
            Certificate.epsilon,
            func.row_number().over(partition_by=Certificate.model_id, order_by=Certificate.epsilon).label("rank"),
            func.count().over(partition_by=Certificate.model_id).label("count"),
        )
        .where(Certificate.model_id.in_(model_ids))
        .subquery()
    )
    rows = session.execute(
        select(ranked.c.model_id, func.avg(ranked.c.epsilon))
        .where((2 * ranked.c.rank).between(ranked.c["count"], ranked.c["count"] + 2))
        .group_by(ranked.c.model_id)
    )
    return dict(rows.all())
