"""Schemas of deletions in the native API."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.schemas.fields import CONVERTED, WHOLE_NUMBER, CallbackUrl, Cursor, QueryBool, Strict, UtcTimestamp, Uuid
from service.schemas.identity_leaks import IN_URL, url_names
from service.schemas.paging import next_cursor
from service.store.deletions.history import Event
from service.store.deletions.lifecycle import OPEN_STATUSES
from service.store.deletions.listing import Criteria
from service.store.deletions.views import DeletionView, TargetView
from service.store.paging import Page, Position, Window
from service.store.states import DeletionStatus, Device
from service.store.tables import now


class IdentityIn(Strict):
    identity_type: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,50}$")] = Field(examples=["email"])
    identity_value: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        examples=["ada@example.org"]
    )


class RecordName(Strict):
    """A row of a model's training data."""

    model: Uuid
    record: int = Field(ge=0, lt=2**31, description="Number of the row at registration, from 0.", examples=[17])


class DeletionCreate(Strict):
    """Request to delete subjects, records, or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["subjects"]}, {"required": ["records"]}],
            "examples": [{"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]}],
        }
    )

    regulation: Literal["gdpr", "ccpa"] = "gdpr"
    subjects: Annotated[list[IdentityIn], Field(min_length=1, max_length=100)] = Field(
        default_factory=list, description="People, all of whose records are forgotten."
    )
    records: Annotated[list[RecordName], Field(min_length=1, max_length=100)] = Field(
        default_factory=list,
        description="Rows to forget. Other rows of the same person stay. A row that was erased before has nothing "
        "left to forget, which is certified; a row that never existed is 404.",
    )
    models: Annotated[list[Uuid], Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Omit to reach every model that holds a subject. If given, `records` must belong to these models.",
    )
    callback_urls: Annotated[list[CallbackUrl], Field(max_length=5)] = Field(
        default=[],
        description="URLs that receive each change of status as a signed POST. Use https; they are stored, so include "
        "no personal data.",
        examples=[["https://compliance.example/lethe"]],
    )

    @field_validator("callback_urls")
    @classmethod
    def _check_urls(cls, urls: list[str], fields: ValidationInfo) -> list[str]:
        values = [subject.identity_value for subject in fields.data.get("subjects", ())]
        if any(url_names(url, values) for url in urls):
            raise PydanticCustomError("identity", IN_URL)
        return urls

    @model_validator(mode="after")
    def _check_not_empty(self) -> DeletionCreate:
        if not self.subjects and not self.records:
            raise ValueError("name subjects, records, or both")
        return self


class ModelProgress(BaseModel):
    model_id: uuid.UUID
    status: DeletionStatus
    attempts: int
    phase: str | None = Field(description="What the worker is doing.")
    percent: float | None
    estimated_end: datetime | None = Field(description="Extrapolated from the pace so far. Null while it is unknown.")
    failure: str | None = Field(description="Why the last attempt failed.")
    certificate: str | None = Field(description="Path of the certificate.")


WHAT_HAPPENS_NEXT = {
    DeletionStatus.PENDING: "A worker will start it shortly.",
    DeletionStatus.RUNNING: "A worker is removing the records from the models. Certificates follow.",
    DeletionStatus.COMPLETED: "Nothing. Download the certificates, or read `outcome` if there are none.",
    DeletionStatus.FAILED: "Nothing until it is retried: read `failure` of each model, fix the cause, retry.",
    DeletionStatus.CANCELLED: "Nothing. Send a new request to delete after all.",
}
WAITING_FOR_GPU = "One of its models needs a GPU: a worker with a GPU will start it as soon as it is free."
RETRYING_IN_SMALLER_BATCH = (
    "Its batch failed. A worker will retry it shortly in a smaller batch, separate from deletions that may have caused "
    "the failure."
)


CANCELLABLE = (
    "It can be cancelled until `binding_at`. Then a worker starts, or absence is certified, and this answer names the "
    "models that hold the subjects."
)


class DeletionOut(BaseModel):
    id: uuid.UUID
    status: DeletionStatus
    regulation: str
    subjects: list[str] = Field(description="Keyed commitments that stand for the subjects in log and certificates.")
    records: list[RecordName] = Field(description="Rows that the request named.")
    received_at: datetime
    binding_at: datetime | None = Field(
        description="Until then its caller can cancel it, and `models`, `outcome` and `absence` are not shown to it. "
        "Null if it was cancelled before."
    )
    due_at: datetime = Field(description="Deadline under the regulation.")
    days_left: int | None = Field(
        description="Whole days until `due_at`, negative if overdue. Null once completed or cancelled."
    )
    overdue: bool
    extension_reason: str | None = Field(description="Why `due_at` was extended, if it was.")
    completed_at: datetime | None
    outcome: str | None = Field(description="Set if there was nothing to forget.")
    absence: str | None = Field(description="Path of the certificate that no model held the subject.")
    what_happens_next: str
    request_id: str
    models: list[ModelProgress]


class DeletionReceipt(DeletionOut):
    receipt: str = Field(
        description="Signed bundle for `lethe verify`, stating that the request is durable. Under the CCPA it is the "
        "confirmation due within 10 business days."
    )


class DeletionFilters(Strict):
    """Filters of deletions. All given ones must match; ranges include `_from` and exclude `_to`."""

    regulation: Literal["gdpr", "ccpa"] | None = None
    model: Uuid | None = Field(default=None, description="Only deletions that concern this model.")
    received_from: UtcTimestamp | None = None
    received_to: UtcTimestamp | None = None
    due_from: UtcTimestamp | None = None
    due_to: UtcTimestamp | None = None
    overdue: QueryBool | None = Field(default=None, description="Past `due_at` and neither completed nor cancelled.")

    def criteria(self, caller: str | None, statuses: list[DeletionStatus] | None = None) -> Criteria:
        """Return the filters for the store. With `caller` given, only that caller's deletions match."""
        filters = self.model_dump(include=set(DeletionFilters.model_fields) - {"model"})
        return Criteria(caller=caller, statuses=statuses or [], model_id=self.model, **filters)


class DeletionSelection(DeletionFilters):
    status: Annotated[list[Annotated[DeletionStatus, CONVERTED]], Field(max_length=len(DeletionStatus))] = Field(
        default=[], description="Repeat to allow several."
    )


class DeletionQuery(DeletionSelection):
    limit: Annotated[int, Field(ge=1, le=200), WHOLE_NUMBER] = 50
    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")

    @property
    def window(self) -> Window:
        return Window(self.limit, Position.decode(self.cursor) if self.cursor else None)


class DeletionPage(BaseModel):
    items: list[DeletionOut] = Field(description="Newest first.")
    next_cursor: str | None = Field(description="Null on the last page.")


class DeletionEvent(BaseModel):
    id: int
    at: datetime
    actor: str = Field(description="A caller, a worker, or `lethe` itself.")
    action: str = Field(examples=["deletion.received"])
    details: dict[str, Any]


class DeletionHistory(BaseModel):
    items: list[DeletionEvent] = Field(description="Oldest first; at most the newest 1,000.")


class ExtensionIn(Strict):
    until: UtcTimestamp = Field(description="The new `due_at`.", examples=["2030-03-31T12:00:00Z"])
    reason: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")
    ] = Field(
        description="One line, kept in the audit trail for ever: include no personal data.",
        examples=["The model is being retrained; complexity under article 12(3)."],
    )


class RetriedOut(BaseModel):
    retried: int = Field(description="Number of deletions that are pending again. If it is 10,000, repeat the request.")


def receipt_out(view: DeletionView, receipt: str) -> DeletionReceipt:
    return DeletionReceipt(**dict(deletion_out(view)), receipt=receipt)


def deletion_out(view: DeletionView) -> DeletionOut:
    deletion, timestamp = view.deletion, now()
    is_open = deletion.status in OPEN_STATUSES
    return DeletionOut(
        id=deletion.id,
        status=DeletionStatus(deletion.status),
        regulation=deletion.regulation,
        subjects=list(view.commitments),
        records=[RecordName(model=record.model_id, record=record.record) for record in view.records],
        received_at=deletion.received_at,
        binding_at=deletion.binding_at,
        due_at=deletion.due_at,
        days_left=(deletion.due_at - timestamp) // timedelta(days=1) if is_open else None,
        overdue=is_open and deletion.due_at < timestamp,
        extension_reason=deletion.extension_reason,
        completed_at=deletion.completed_at,
        outcome=None if view.is_concealed else deletion.outcome,
        absence=absence_path(view),
        what_happens_next=_what_happens_next(view),
        request_id=deletion.request_id,
        models=[_progress(target) for target in view.targets],
    )


def absence_path(view: DeletionView) -> str | None:
    """Return the path of the certificate of absence, None if there is none."""
    is_absent = view.deletion.status == DeletionStatus.COMPLETED and not view.targets
    return f"/api/v1/deletions/{view.deletion.id}/absence" if is_absent else None


def _what_happens_next(view: DeletionView) -> str:
    status = DeletionStatus(view.deletion.status)
    if view.is_concealed and status == DeletionStatus.PENDING:
        return CANCELLABLE
    waiting = [target for target in view.targets if target.status == status == DeletionStatus.PENDING]
    if any(target.device == Device.CUDA for target in waiting):
        return WAITING_FOR_GPU
    return RETRYING_IN_SMALLER_BATCH if any(target.batch_limit for target in waiting) else WHAT_HAPPENS_NEXT[status]


def _progress(target: TargetView) -> ModelProgress:
    return ModelProgress(
        model_id=target.model_id,
        status=DeletionStatus(target.status),
        attempts=target.attempts,
        phase=target.phase,
        percent=target.percent,
        estimated_end=target.estimated_end,
        failure=target.failure,
        certificate=target.certificate_id and f"/api/v1/certificates/{target.certificate_id}",
    )


def page_out(page: Page[DeletionView]) -> DeletionPage:
    return DeletionPage(items=[deletion_out(view) for view in page.items], next_cursor=next_cursor(page))


def event_out(event: Event) -> DeletionEvent:
    return DeletionEvent(id=event.id, at=event.at, actor=event.actor, action=event.action, details=event.details)
