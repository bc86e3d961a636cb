"""What goes over the wire, native API. Unknown fields are refused: a misspelt `models` must not delete everywhere."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from service.settings import Settings
from service.settings.callback_targets import LONGEST_URL, URL_PATTERN
from service.store.deletions.history import Event
from service.store.deletions.lifecycle import OPEN, DeletionView, TargetView
from service.store.deletions.listing import Criteria
from service.store.paging import Page, Position, Window
from service.store.signing.keys import public_pem
from service.store.states import DeletionStatus, Device
from service.store.tables import SigningKey, now


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999 in UTC") from None


def spelt(pattern: re.Pattern[str], what: str) -> BeforeValidator:
    """Pydantic alone would also take what others may read differently: seconds since 1970, capital letters, braces."""

    def check(value: object) -> object:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"must be {what}")
        return value

    return BeforeValidator(check)


RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
Timestamp = Annotated[AwareDatetime, spelt(RFC_3339, "a time with its zone as in RFC 3339")]
Moment = Annotated[Timestamp, AfterValidator(_in_utc)]
Day = Annotated[date, spelt(re.compile(r"\d{4}-\d\d-\d\d", re.ASCII), "a day such as 2030-03-31")]


def _ours(cursor: str) -> str:
    return Position.decode(cursor).encode()


Cursor = Annotated[
    str, StringConstraints(max_length=64), AfterValidator(_ours), Field(json_schema_extra={"format": "cursor"})
]


class IdentityIn(Strict):
    identity_type: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,50}$")] = Field(examples=["email"])
    identity_value: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        examples=["ada@example.org"]
    )


CallbackUrl = Annotated[str, StringConstraints(max_length=LONGEST_URL, pattern=URL_PATTERN)]


class RecordName(Strict):
    """A row of a model's data set."""

    model: uuid.UUID
    record: int = Field(ge=0, lt=2**31, description="The row's number at registration, counted from 0.", examples=[17])


class DeletionCreate(Strict):
    """Names subjects, records, or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["subjects"]}, {"required": ["records"]}],
            "examples": [{"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]}],
        }
    )

    regulation: Literal["gdpr", "ccpa"] = "gdpr"
    subjects: Annotated[list[IdentityIn], Field(min_length=1, max_length=100)] = Field(
        default_factory=list, description="People: all their records are forgotten."
    )
    records: Annotated[list[RecordName], Field(min_length=1, max_length=100)] = Field(
        default_factory=list,
        description="Rows: exactly these are forgotten, and the other rows of the same person stay. A row that was "
        "erased before has nothing left to forget, which is certified; one that never was is 404.",
    )
    models: Annotated[list[uuid.UUID], Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Leave out to reach every model that holds a subject. `records` must be of these models, if given.",
    )
    callback_urls: Annotated[list[CallbackUrl], Field(max_length=5)] = Field(
        default=[],
        description="Where to POST each change of its status, signed. Use https, and name no person in it: it is kept.",
        examples=[["https://compliance.example/lethe"]],
    )

    @model_validator(mode="after")
    def _names_something(self) -> DeletionCreate:
        if not self.subjects and not self.records:
            raise ValueError("name subjects, records, or both")
        return self


class ModelProgress(BaseModel):
    model_id: uuid.UUID
    status: DeletionStatus
    attempts: int
    phase: str | None = Field(description="What the worker is doing now.")
    percent: float | None
    estimated_end: datetime | None = Field(
        description="If the rest goes as fast as what is done. Null while it is unknown."
    )
    failure: str | None = Field(description="Why the last attempt failed, in plain words.")
    certificate: str | None = Field(description="Where to download the certificate.")


WHAT_HAPPENS_NEXT = {
    DeletionStatus.PENDING: "A worker takes it up shortly. Until then it can be cancelled.",
    DeletionStatus.RUNNING: "A worker is removing the records from the models. Certificates follow when it is done.",
    DeletionStatus.COMPLETED: "Nothing: it is done. Download the certificates, or read `outcome` if there is none.",
    DeletionStatus.FAILED: "Nothing until somebody retries it: read `failure` of each model, remove the cause, retry.",
    DeletionStatus.CANCELLED: "Nothing: it was taken back. Send a new request to delete after all.",
}
WAITS_FOR_A_GPU = (
    "It waits for a worker with a GPU, which one of its models needs: one takes it up as soon as it is free. "
    "Until then it can be cancelled."
)
IN_SMALLER_BATCHES = (
    "A batch that it was in failed. A worker takes it up shortly in a smaller one, so that another deletion that "
    "cannot be done does not hold it up. Until then it can be cancelled."
)


class DeletionOut(BaseModel):
    id: uuid.UUID
    status: DeletionStatus
    regulation: str
    subjects: list[str] = Field(description="Keyed commitments: what log and certificate call the subjects.")
    records: list[RecordName] = Field(description="The rows that were named themselves.")
    received_at: datetime
    due_at: datetime = Field(description="By when the regulation wants it done.")
    days_left: int | None = Field(description="Whole days until `due_at`, negative when late. Null once it is done.")
    overdue: bool
    extension_reason: str | None = Field(description="Why `due_at` was moved, if it was.")
    completed_at: datetime | None
    outcome: str | None = Field(description="Said when there was nothing to forget.")
    absence: str | None = Field(description="Where to download the certificate that no model held the subject.")
    what_happens_next: str
    request_id: str
    models: list[ModelProgress]


class DeletionReceipt(DeletionOut):
    receipt: str = Field(
        description="A signed bundle, for `lethe verify`: our word that the request is durable. Under the CCPA it is "
        "the confirmation that is due within 10 business days."
    )


class DeletionFilters(Strict):
    """Query parameters that choose deletions. All given ones must hold; ranges include `_from` and not `_to`."""

    regulation: Literal["gdpr", "ccpa"] | None = None
    model: uuid.UUID | None = Field(default=None, description="Only those that concern this model.")
    received_from: Moment | None = None
    received_to: Moment | None = None
    due_from: Moment | None = None
    due_to: Moment | None = None
    overdue: bool | None = Field(default=None, description="Past `due_at`, and neither completed nor cancelled.")

    def criteria(self, caller: str | None, statuses: list[DeletionStatus] | None = None) -> Criteria:
        """With `caller` given, only theirs."""
        chosen = self.model_dump(include=set(DeletionFilters.model_fields) - {"model"})
        return Criteria(caller=caller, statuses=statuses or [], model_id=self.model, **chosen)


class DeletionSelection(DeletionFilters):
    status: Annotated[list[DeletionStatus], Field(max_length=len(DeletionStatus))] = Field(
        default=[], description="Repeat it to allow several."
    )


class DeletionQuery(DeletionSelection):
    limit: int = Field(default=50, ge=1, le=200)
    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the page before.")

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
    items: list[DeletionEvent] = Field(description="Oldest first; of a very long history the newest 1,000.")


class ExtensionIn(Strict):
    until: Moment = Field(description="The new `due_at`.", examples=["2030-03-31T12:00:00Z"])
    reason: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")
    ] = Field(
        description="One line, kept in the audit trail for ever: name no person.",
        examples=["The model is being retrained; complexity under article 12(3)."],
    )


class RetriedOut(BaseModel):
    retried: int = Field(description="How many deletions are pending again. At the limit of 10,000, ask again.")


class PublicKey(BaseModel):
    keyid: str = Field(description="SHA-256 of the key's 32 bytes.")
    algorithm: Literal["ed25519"] = "ed25519"
    public_key_pem: str
    created_at: datetime = Field(description="When this service first knew of it.")
    retired_at: datetime | None = Field(description="What it signed then or later is not ours.")
    revoked_at: datetime | None = Field(
        description="Somebody else may have had it: believe nothing that it signed then or later."
    )
    reason: str | None = Field(description="Why it was revoked.")


class PublicKeys(BaseModel):
    origin: str = Field(description="The name of the log whose checkpoints these keys sign.")
    keys: list[PublicKey] = Field(description="The one that signs now first, then the newest.")
    witnesses: list[str] = Field(description="Verifier keys (C2SP) of those who are asked to cosign checkpoints.")


def public_keys_out(settings: Settings, keys: Sequence[SigningKey]) -> PublicKeys:
    witnesses = [witness.verifier_key for witness in settings.log_witnesses]
    return PublicKeys(origin=settings.origin, keys=[_public_key_out(key) for key in keys], witnesses=witnesses)


def _public_key_out(key: SigningKey) -> PublicKey:
    return PublicKey(
        keyid=key.key_id,
        public_key_pem=public_pem(key),
        created_at=key.created_at,
        retired_at=key.retired_at,
        revoked_at=key.revoked_at,
        reason=key.reason,
    )


def receipt_out(view: DeletionView, receipt: str) -> DeletionReceipt:
    return DeletionReceipt(**dict(deletion_out(view)), receipt=receipt)


def deletion_out(view: DeletionView) -> DeletionOut:
    deletion, moment = view.deletion, now()
    counts = deletion.status in OPEN
    return DeletionOut(
        id=deletion.id,
        status=DeletionStatus(deletion.status),
        regulation=deletion.regulation,
        subjects=list(view.commitments),
        records=[RecordName(model=record.model_id, record=record.record) for record in view.records],
        received_at=deletion.received_at,
        due_at=deletion.due_at,
        days_left=(deletion.due_at - moment) // timedelta(days=1) if counts else None,
        overdue=counts and deletion.due_at < moment,
        extension_reason=deletion.extension_reason,
        completed_at=deletion.completed_at,
        outcome=deletion.outcome,
        absence=None if view.targets else f"/api/v1/deletions/{deletion.id}/absence",
        what_happens_next=_what_happens_next(view),
        request_id=deletion.request_id,
        models=[_progress(target) for target in view.targets],
    )


def _what_happens_next(view: DeletionView) -> str:
    status = DeletionStatus(view.deletion.status)
    waiting = [target for target in view.targets if target.status == status == DeletionStatus.PENDING]
    if any(target.device == Device.CUDA for target in waiting):
        return WAITS_FOR_A_GPU
    return IN_SMALLER_BATCHES if any(target.batch_limit for target in waiting) else WHAT_HAPPENS_NEXT[status]


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
    items = [deletion_out(view) for view in page.items]
    return DeletionPage(items=items, next_cursor=page.end.encode() if page.end else None)


def event_out(event: Event) -> DeletionEvent:
    return DeletionEvent(id=event.id, at=event.at, actor=event.actor, action=event.action, details=event.details)
