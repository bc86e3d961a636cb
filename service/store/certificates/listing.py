"""Certified bounds for auditors, read from the certificates' rows and from the signed statements."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field, TypeAdapter
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.store.models import registry
from service.store.paging import Page, Position, Window, make_page, newest_first
from service.store.tables import Certificate
from vocabulary.bound import Rung
from vocabulary.certificate import (
    Bundle,
    CertificatePredicate,
    CertificateStatement,
    DestructionPredicate,
    DestructionStatement,
)

_CERTIFICATE: TypeAdapter[CertificateStatement | DestructionStatement] = TypeAdapter(
    Annotated[CertificateStatement | DestructionStatement, Field(discriminator="predicateType")]
)


IS_CURRENT = Certificate.replaced_by.is_(None)
"""Certificates in whose stead another was issued are not listed."""


@dataclass(frozen=True)
class BoundFilter:
    """Filter of certified bounds. `issued_from` is inclusive, `issued_to` exclusive, so that months do not overlap."""

    model_id: uuid.UUID | None = None
    level: str | None = None
    issued_from: datetime | None = None
    issued_to: datetime | None = None
    epsilon_above: float | None = None


@dataclass(frozen=True)
class CertifiedBound:
    """A certificate's row and its signed statement."""

    certificate: Certificate
    predicate: CertificatePredicate | DestructionPredicate

    @property
    def last_rung(self) -> Rung | None:
        """The rung whose result was published: a worker stops at the first one that meets the policy.

        None for a destruction, which tries none.
        """
        return self.predicate.rungs[-1] if isinstance(self.predicate, CertificatePredicate) else None


@dataclass(frozen=True)
class ModelBounds:
    """Summary of a model's certificates; None where it has none. Those of a destruction count, but have no bound."""

    model_id: uuid.UUID
    name: str
    count: int
    worst_epsilon: float | None
    median_epsilon: float | None
    levels: Mapping[str, int]
    latest_issued_at: datetime | None


def find_bound_page(session: Session, bound_filter: BoundFilter, window: Window) -> Page[CertifiedBound]:
    """Return the bounds that match, newest first."""
    query = newest_first(_matching(bound_filter), Certificate.issued_at, Certificate.id, window)
    rows = make_page(session.scalars(query).all(), window, lambda row: Position(row.issued_at, row.id))
    return Page([CertifiedBound(row, signed_predicate(row.bundle)) for row in rows.items], rows.end)


def find_model_bounds_page(session: Session, window: Window) -> Page[ModelBounds]:
    """Return a summary of every model, newest first, including models without a certificate."""
    models = registry.find_model_page(session, window)
    names = {model.id: model.name for model, _ in models.items}
    return Page(_aggregate(session, names), models.end)


def signed_predicate(bundle: str) -> CertificatePredicate | DestructionPredicate:
    """Return what a certificate states. Its signature is not checked: the row is ours, and `lethe verify` checks it."""
    payload = Bundle.model_validate_json(bundle).envelope.decode_payload()
    return _CERTIFICATE.validate_json(payload).predicate


def _matching(bound_filter: BoundFilter) -> Select[Certificate]:
    query = select(Certificate).where(IS_CURRENT)
    if bound_filter.model_id is not None:
        query = query.where(Certificate.model_id == bound_filter.model_id)
    if bound_filter.level is not None:
        query = query.where(Certificate.level == bound_filter.level)
    if bound_filter.issued_from is not None:
        query = query.where(Certificate.issued_at >= bound_filter.issued_from)
    if bound_filter.issued_to is not None:
        query = query.where(Certificate.issued_at < bound_filter.issued_to)
    if bound_filter.epsilon_above is not None:
        query = query.where(Certificate.epsilon > bound_filter.epsilon_above)
    return query


def _aggregate(session: Session, names: Mapping[uuid.UUID, str]) -> Sequence[ModelBounds]:
    of_models = Certificate.model_id.in_(names), IS_CURRENT
    certified = select(Certificate.model_id).where(*of_models).group_by(Certificate.model_id)
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
    """Return the median epsilon by model. SQLite has no median function.

    The middle one or two of n are those whose doubled rank is n, n + 1 or n + 2.
    """
    ranked = (
        select(
            Certificate.model_id,
            Certificate.epsilon,
            func.row_number().over(partition_by=Certificate.model_id, order_by=Certificate.epsilon).label("rank"),
            func.count().over(partition_by=Certificate.model_id).label("count"),
        )
        .where(Certificate.model_id.in_(model_ids), Certificate.epsilon.is_not(None), IS_CURRENT)
        .subquery()
    )
    rows = session.execute(
        select(ranked.c.model_id, func.avg(ranked.c.epsilon))
        .where((2 * ranked.c.rank).between(ranked.c["count"], ranked.c["count"] + 2))
        .group_by(ranked.c.model_id)
    )
    return dict(rows.all())
