"""What goes over the wire, native API. Unknown fields are refused: a misspelt `models` must not delete everywhere."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from service.store.deletions import DeletionView
from service.store.tables import DeletionStatus, Model, Version


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class IdentityIn(Strict):
    identity_type: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,50}$")] = Field(examples=["email"])
    identity_value: Annotated[str, StringConstraints(min_length=1, max_length=512)] = Field(
        examples=["ada@example.org"]
    )


class DeletionCreate(Strict):
    regulation: Literal["gdpr", "ccpa"] = "gdpr"
    subjects: Annotated[list[IdentityIn], Field(min_length=1, max_length=100)]
    models: Annotated[list[uuid.UUID], Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Leave out to reach every model that holds a subject."
    )


class ModelProgress(BaseModel):
    model_id: uuid.UUID
    status: DeletionStatus
    attempts: int
    phase: str | None = Field(description="What the worker is doing now.")
    percent: float | None
    failure: str | None = Field(description="Why the last attempt failed, in plain words.")
    certificate: str | None = Field(description="Where to download the certificate.")


class DeletionOut(BaseModel):
    id: uuid.UUID
    status: DeletionStatus
    regulation: str
    subjects: list[str] = Field(description="Keyed commitments: what log and certificate call the subjects.")
    received_at: datetime
    completed_at: datetime | None
    outcome: str | None = Field(description="Said when there was nothing to forget.")
    request_id: str
    models: list[ModelProgress]


class DeletionReceipt(DeletionOut):
    receipt: str = Field(description="A signed bundle, for `lethe verify`: our word that the request is durable.")


class GaussianMixtureConfig(Strict):
    components: int = Field(ge=1, le=100)
    dimensions: int = Field(ge=1, le=1000)
    prior_std: float = Field(gt=0, le=1e6)


Rung = Literal["influence", "newton", "warm", "retrain"]
RUNGS: list[Rung] = ["influence", "newton", "warm", "retrain"]


class Policy(Strict):
    """What a version must meet to be published. A worker climbs the rungs until it is met."""

    epsilon: float = Field(gt=0, le=1e3, description="The largest KL divergence a published version may have.")
    level: Literal["estimated", "proved", "retrained"] = Field(
        default="proved", description="How sure the bound must be. `retrained` always trains from scratch."
    )
    rungs: list[Rung] = Field(
        default=RUNGS, min_length=1, description="What may be tried, from the cheapest to retraining."
    )
    seconds: float | None = Field(
        default=None, gt=0, le=30 * 86_400, description="No further rung is begun after so many seconds."
    )

    @model_validator(mode="after")
    def _can_be_met(self) -> Policy:
        if self.rungs != [rung for rung in RUNGS if rung in self.rungs]:
            raise ValueError(f"rungs must be some of {', '.join(RUNGS)}, each once and in this order")
        if self.level == "retrained" and "retrain" not in self.rungs:
            raise ValueError("level 'retrained' needs the rung 'retrain'")
        return self


class Manifest(Strict):
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    family: Literal["gaussian-mixture"]
    config: GaussianMixtureConfig
    policy: Policy


class ModelOut(BaseModel):
    id: uuid.UUID
    name: str
    family: str
    config: dict[str, Any]
    policy: Policy
    version: int
    record_count: int
    posterior_sha256: str
    readiness: dict[str, Any] | None = Field(
        description="How converged the posterior is, which certificate levels it can reach and what would help. "
        "Null until a worker has looked, which takes seconds after registration."
    )
    created_at: datetime


class PublicKey(BaseModel):
    keyid: str
    algorithm: Literal["ed25519"] = "ed25519"
    public_key_pem: str


class PublicKeys(BaseModel):
    keys: list[PublicKey]


def deletion_out(view: DeletionView) -> DeletionOut:
    deletion = view.deletion
    return DeletionOut(
        id=deletion.id,
        status=DeletionStatus(deletion.status),
        regulation=deletion.regulation,
        subjects=list(view.commitments),
        received_at=deletion.received_at,
        completed_at=deletion.completed_at,
        outcome=deletion.outcome,
        request_id=deletion.request_id,
        models=[
            ModelProgress(
                model_id=target.model_id,
                status=DeletionStatus(target.status),
                attempts=target.attempts,
                phase=target.phase,
                percent=target.percent,
                failure=target.failure,
                certificate=target.certificate_id and f"/api/v1/certificates/{target.certificate_id}",
            )
            for target in view.targets
        ],
    )


def model_out(model: Model, version: Version) -> ModelOut:
    return ModelOut(
        id=model.id,
        name=model.name,
        family=model.family,
        config=model.config,
        policy=Policy.model_validate(model.policy),
        version=version.number,
        record_count=version.record_count,
        posterior_sha256=version.posterior_digest,
        readiness=version.readiness,
        created_at=model.created_at,
    )
