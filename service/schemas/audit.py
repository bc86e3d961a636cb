"""Schemas for auditors: certified bounds, one by one and per model, and daily summaries."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel, Field

from service.store.certificates.listing import CertifiedBound, ModelBounds
from service.store.deletions.summaries import Summary
from vocabulary.certificate import CertificatePredicate
from vocabulary.references import Reference


class BoundOut(BaseModel):
    certificate_id: uuid.UUID
    deletion_id: uuid.UUID
    model_id: uuid.UUID
    epsilon: float | None = Field(
        description="Upper bound of KL(published ‖ reference) in nats; for an estimate, the upper end of its interval. "
        "For an estimated variational network it is the excess of a divergence, which the certificate's `direction` "
        "names. Null if the model was destroyed: then there is nothing to bound."
    )
    epsilon_reverse: float | None = Field(description="Bound of the other direction; null if it is not computed.")
    level: str = Field(description="Level of the bound, or `destroyed`.")
    reference_kind: Reference | None = Field(
        description="Of samples: `posterior`, or the weaker `stored draws`. Null for other posteriors."
    )
    interval: tuple[float, float] | None = Field(description="95 % confidence interval of an estimate.")
    rung: str | None = Field(description="Rung whose result was published; null if the model was destroyed.")
    solver: str | None
    records_before: int
    records_after: int
    policy: dict[str, Any] | None = Field(
        description="Policy that the job had to meet: the strictest of the model's policy and those frozen at receipt. "
        "Null if the model was destroyed."
    )
    received_at: datetime
    issued_at: datetime


class BoundPage(BaseModel):
    items: list[BoundOut]
    next_cursor: str | None


class ModelBoundsOut(BaseModel):
    model_id: uuid.UUID
    name: str
    count: int = Field(description="Number of certificates issued for the model.")
    worst_epsilon: float | None
    median_epsilon: float | None
    levels: dict[str, int] = Field(
        description="Number of certificates by level; `destroyed` counts those of the model's destruction.",
        examples=[{"proved": 12}],
    )
    latest_issued_at: datetime | None


class ModelBoundsPage(BaseModel):
    items: list[ModelBoundsOut]
    next_cursor: str | None


class SummaryCounts(BaseModel):
    received: int
    completed: int
    failed: int = Field(description="Failed deletions that wait for a retry.")
    overdue: int
    due_soon: int = Field(description="Due within 7 days.")


class SummaryOut(BaseModel):
    day: date = Field(description="In UTC.")
    since: datetime = Field(
        description="Start of the period of `received` and `completed`, which ends with the day. Longer than a day "
        "only if no sweep ran on the previous day."
    )
    written_at: datetime = Field(description="When `failed`, `overdue` and `due_soon` were counted.")
    regulations: dict[str, SummaryCounts] = Field(
        examples=[{"gdpr": {"received": 12, "completed": 11, "failed": 0, "overdue": 0, "due_soon": 1}}]
    )


class SummaryPage(BaseModel):
    items: list[SummaryOut] = Field(description="Newest day first.")


def bound_out(bound: CertifiedBound) -> BoundOut:
    certificate, predicate, rung = bound.certificate, bound.predicate, bound.last_rung
    signed = predicate.bound if isinstance(predicate, CertificatePredicate) else None
    return BoundOut(
        certificate_id=certificate.id,
        deletion_id=certificate.deletion_id,
        model_id=certificate.model_id,
        epsilon=certificate.epsilon,
        epsilon_reverse=signed.epsilon_reverse if signed else None,
        level=certificate.level,
        reference_kind=signed.reference_kind if signed else None,
        interval=signed.interval if signed else None,
        rung=rung.name if rung else None,
        solver=rung.solver if rung else None,
        records_before=predicate.records.before,
        records_after=predicate.records.after,
        policy=predicate.policy.to_dict() if isinstance(predicate, CertificatePredicate) else None,
        received_at=predicate.received_at,
        issued_at=certificate.issued_at,
    )


def model_bounds_out(bounds: ModelBounds) -> ModelBoundsOut:
    return ModelBoundsOut(
        model_id=bounds.model_id,
        name=bounds.name,
        count=bounds.count,
        worst_epsilon=bounds.worst_epsilon,
        median_epsilon=bounds.median_epsilon,
        levels=dict(bounds.levels),
        latest_issued_at=bounds.latest_issued_at,
    )


def summary_out(summary: Summary) -> SummaryOut:
    return SummaryOut.model_validate(asdict(summary))
