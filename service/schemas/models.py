"""Models over the wire: a manifest for each family, policies, locations, and what is told of a model."""

from __future__ import annotations

import uuid
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import rfc8785
from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from service.family_configs import (
    NETWORKS,
    Config,
    GaussianMixtureConfig,
    LeNet5Config,
    LinearRegressionConfig,
    LogisticRegressionConfig,
    MLPConfig,
    SoftmaxRegressionConfig,
)
from service.schemas.deletions import Strict
from service.store.datasets.layouts import UNKNOWN_LAYOUT, Layout
from service.store.states import Device
from service.store.tables import Model, Version
from vocabulary.levels import CertifiedLevel
from vocabulary.posterior_kinds import PosteriorKind
from vocabulary.rungs import RUNGS, RungName

FAMILIES = "lethe.families"
"""The entry points under which installed packages offer model families. Their names are read, never their code."""
LARGEST_CONFIG = 16 << 10

DatasetRoot = Annotated[
    str | None,
    Field(
        description="Of the Merkle tree over the salted commitments of its records. Certificates prove against it what "
        "is no longer there. Null for versions from before there were such trees."
    ),
]


class Policy(Strict):
    """What a version must meet to be published. A worker climbs the rungs until it is met."""

    epsilon: float = Field(gt=0, le=1e3, description="The largest KL divergence a published version may have.")
    level: CertifiedLevel = Field(
        default="proved", description="How sure the bound must be. `retrained` always trains from scratch."
    )
    rungs: list[RungName] = Field(
        default=list(RUNGS), min_length=1, description="What may be tried, from the cheapest to retraining."
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

    def conflict_with(self, family: str, kind: str) -> str | None:
        """Why no certificate of such a posterior can ever meet it."""
        if "retrain" in self.rungs or (family not in NETWORKS and kind != "samples"):
            return None
        what, missing, others = ("networks", "newton", "warm") if family in NETWORKS else ("samples", "warm", "newton")
        if self.level != "estimated":
            return f"certificates of {what} are estimated: ask for level 'estimated', or allow the rung 'retrain'"
        if self.rungs == [missing]:
            return f"{what} know no rung '{missing}': allow influence, {others} or retrain"
        return None


class BaseManifest(Strict):
    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
    family: str
    posterior: PosteriorKind = Field(
        default="variational",
        description="What the file holds: `variational` parameters (`mean`, `std`), or `samples` of SGLD, SGHMC or "
        "another chain (`samples`, `chain`).",
    )
    device: Device = Field(
        default=Device.CPU,
        description="`cpu`: any worker may take it, and uses a GPU if it has one. `cuda`: it waits for one with a GPU.",
    )
    policy: Policy

    @property
    def layout(self) -> Layout:
        return UNKNOWN_LAYOUT

    @property
    def plain_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.model_dump()["config"]
        return config

    @model_validator(mode="after")
    def _policy_can_be_met(self) -> BaseManifest:
        conflict = self.policy.conflict_with(self.family, self.posterior)
        if conflict is not None:
            raise ValueError(f"policy: {conflict}")
        return self


class OwnManifest(BaseManifest):
    config: Config

    @property
    def layout(self) -> Layout:
        return self.config.layout


class GaussianMixtureManifest(OwnManifest):
    family: Literal["gaussian-mixture"]
    config: GaussianMixtureConfig


class LinearRegressionManifest(OwnManifest):
    family: Literal["linear-regression"]
    config: LinearRegressionConfig


class LogisticRegressionManifest(OwnManifest):
    family: Literal["logistic-regression"]
    config: LogisticRegressionConfig


class SoftmaxRegressionManifest(OwnManifest):
    family: Literal["softmax-regression"]
    config: SoftmaxRegressionConfig


class NetworkManifest(OwnManifest):
    posterior: Literal["variational"] = Field(
        default="variational", description="`mean` and `std`. Of a network's samples nothing could be certified."
    )

    @field_validator("posterior", mode="before")
    @classmethod
    def _can_be_certified(cls, posterior: Any) -> Any:
        if posterior == "samples":
            raise ValueError(
                "samples of networks get no certificate: the weights of a few draws say nothing about so many "
                "parameters. Register variational parameters"
            )
        return posterior


class MLPManifest(NetworkManifest):
    family: Literal["mlp"]
    config: MLPConfig


class LeNet5Manifest(NetworkManifest):
    family: Literal["lenet5"]
    config: LeNet5Config


OURS = ("gaussian-mixture", "linear-regression", "logistic-regression", "softmax-regression", *NETWORKS)


class InstalledFamilyManifest(BaseManifest):
    """A family of another package, found by its entry point in the group `lethe.families`."""

    family: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,50}$")] = Field(
        json_schema_extra={"not": {"enum": [*OURS]}}
    )
    config: dict[str, JsonValue] = Field(description="As the family's own documentation says; the worker checks it.")

    @field_validator("family")
    @classmethod
    def _installed(cls, family: str) -> str:
        names = sorted({entry.name for entry in entry_points(group=FAMILIES)})
        if family not in names:
            raise ValueError(f"is not installed here: use one of {', '.join(names)}, or install its package")
        return family

    @field_validator("config")
    @classmethod
    def _can_be_signed(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            size = len(rfc8785.dumps(config))
        except (rfc8785.CanonicalizationError, RecursionError):
            raise ValueError("has numbers or text that JSON cannot carry exactly: certificates repeat it") from None
        if size > LARGEST_CONFIG:
            raise ValueError(f"is larger than {LARGEST_CONFIG} bytes: certificates repeat it")
        return config


def family_tag(value: Any) -> str:
    """Which manifest it is to be read as: ours by its family, any other as that of an installed one."""
    family = value.get("family") if isinstance(value, dict) else getattr(value, "family", None)
    return family if family in OURS else "installed"


Manifest = Annotated[
    Annotated[GaussianMixtureManifest, Tag("gaussian-mixture")]
    | Annotated[LinearRegressionManifest, Tag("linear-regression")]
    | Annotated[LogisticRegressionManifest, Tag("logistic-regression")]
    | Annotated[SoftmaxRegressionManifest, Tag("softmax-regression")]
    | Annotated[MLPManifest, Tag("mlp")]
    | Annotated[LeNet5Manifest, Tag("lenet5")]
    | Annotated[InstalledFamilyManifest, Tag("installed")],
    Discriminator(family_tag),
]


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("must be a path relative to the import root that stays inside it")
    return path


RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_inside)]


class Location(Strict):
    """Where the parts of a registration are, relative to the service's import root."""

    posterior: RelativePath = Field(examples=["churn/posterior.safetensors"])
    records: RelativePath = Field(examples=["churn/records.safetensors"])
    subjects: RelativePath = Field(examples=["churn/subjects.json"])
    never_seen: RelativePath | None = Field(default=None, examples=["churn/never_seen.safetensors"])


class ModelImport(Strict):
    manifest: Manifest
    location: Location


class ModelOut(BaseModel):
    id: uuid.UUID
    name: str
    family: str
    posterior: PosteriorKind
    device: Device = Field(description="Which workers may take it: any (`cpu`), or those with a GPU (`cuda`).")
    config: dict[str, Any]
    policy: Policy
    version: int
    record_count: int
    posterior_sha256: str
    dataset_root: DatasetRoot
    readiness: dict[str, Any] | None = Field(
        description="How converged the posterior is, which certificate levels it can reach and what would help. "
        "Null until a worker has looked, which takes seconds after registration."
    )
    created_at: datetime


def model_out(model: Model, version: Version) -> ModelOut:
    return ModelOut(
        id=model.id,
        name=model.name,
        family=model.family,
        posterior=model.posterior_kind,
        device=model.device,
        config=model.config,
        policy=Policy.model_validate(model.policy),
        version=version.number,
        record_count=version.record_count,
        posterior_sha256=version.posterior_digest,
        dataset_root=version.dataset_root,
        readiness=version.readiness,
        created_at=model.created_at,
    )
