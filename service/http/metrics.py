"""Prometheus metrics: counters of requests, and gauges read from the database at scrape time."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.deletions.summaries import count_deadlines
from service.store.states import BatchStatus, CallbackStatus, DeletionStatus, RefreshStatus
from service.store.tables import Batch, Callback, Certificate, Deletion, Refresh, now


class Metrics:
    """Metrics with a registry of their own, so that several apps in one process (tests) do not collide."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "lethe_http_requests", "Requests answered", ["method", "route", "status"], registry=self._registry
        )
        self.latency = Histogram(
            "lethe_http_request_seconds", "Time to answer", ["method", "route"], registry=self._registry
        )
        self._deletions = Gauge("lethe_deletions", "Deletions by status", ["status"], registry=self._registry)
        self._overdue = Gauge("lethe_deletions_overdue", "Open and past their deadline", registry=self._registry)
        self._due_soon = Gauge("lethe_deletions_due_soon", "Open and due within 7 days", registry=self._registry)
        self._oldest = Gauge(
            "lethe_oldest_pending_seconds", "Age of the oldest deletion not yet completed", registry=self._registry
        )
        self._batches = Gauge("lethe_batches", "Batches by status", ["status"], registry=self._registry)
        self._refreshes = Gauge("lethe_refreshes", "Refreshes by status", ["status"], registry=self._registry)
        self._callbacks = Gauge(
            "lethe_callbacks", "Callbacks by status; dead: all attempts failed", ["status"], registry=self._registry
        )
        self._certificates = Gauge("lethe_certificates", "Certificates by level", ["level"], registry=self._registry)

    def render(self, session: Session) -> bytes:
        counts = dict(session.execute(select(Deletion.status, func.count()).group_by(Deletion.status)).all())
        for status in DeletionStatus:
            self._deletions.labels(status).set(counts.get(status, 0))
        deadlines = count_deadlines(session)
        self._overdue.set(deadlines.overdue)
        self._due_soon.set(deadlines.due_soon)
        batches = dict(session.execute(select(Batch.status, func.count()).group_by(Batch.status)).all())
        for batch_status in BatchStatus:
            self._batches.labels(batch_status).set(batches.get(batch_status, 0))
        refreshes = dict(session.execute(select(Refresh.status, func.count()).group_by(Refresh.status)).all())
        for refresh_status in RefreshStatus:
            self._refreshes.labels(refresh_status).set(refreshes.get(refresh_status, 0))
        callbacks = dict(session.execute(select(Callback.status, func.count()).group_by(Callback.status)).all())
        for callback_status in CallbackStatus:
            self._callbacks.labels(callback_status).set(callbacks.get(callback_status, 0))
        current = select(Certificate.level, func.count()).where(Certificate.replaced_by.is_(None))
        for level, count in session.execute(current.group_by(Certificate.level)):
            self._certificates.labels(level).set(count)
        oldest = session.scalar(
            select(func.min(Deletion.received_at)).where(
                Deletion.status.in_([DeletionStatus.PENDING, DeletionStatus.RUNNING])
            )
        )
        self._oldest.set((now() - oldest).total_seconds() if oldest else 0)
        return generate_latest(self._registry)
