"""Schemas of models: a manifest for each family, policies, import locations and model responses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    create_model,
    field_validator,
    model_validator,
)

from service.schemas.fields import CONVERTED, Strict
from service.schemas.refreshes import RefreshOut, refresh_out
from service.store.canonical_json import canonical_json
from service.store.states import Device
from service.store.tables import Model, Refresh, Version
from vocabulary.families import (
    FAMILIES,
    BuiltInFamily,
    FamilyConfig,
    entry_points_by_family,
    is_network,
    records_needed,
)
from vocabulary.layouts import UNKNOWN_LAYOUT, Layout
from vocabulary.levels import CertifiedLevel
from vocabulary.posterior_kinds import PosteriorKind
from vocabulary.references import DEFAULT_REFERENCE, Reference
from vocabulary.rungs import DEFAULT_RUNGS, RUNGS, RungName

MAX_CONFIG_BYTES = 16 << 10

DatasetRoot = Annotated[
    str | None,
    Field(
        description="Root of the Merkle tree over the salted commitments of the records. Certificates prove absence "
        "against it. Null for versions from before these trees existed."
    ),
]


_PLURALS: Mapping[str, str] = {
    "variational": "variational posteriors",
    "samples": "samples",
    "ensemble": "ensembles",
}
_OFFERED_RUNGS: Mapping[str, tuple[RungName, ...]] = {
    "variational posteriors": ("influence", "newton", "warm", "retrain"),
    "samples": ("influence", "newton", "reweight", "temper", "retrain"),
    "networks": ("influence", "warm", "retrain"),
    "samples of networks": ("influence", "reweight", "temper", "retrain"),
    "ensembles": ("retrain",),
}


class Policy(Strict):
    """Conditions for publishing a version. A worker tries the rungs in turn until they are met."""

    epsilon: float = Field(gt=0, le=1e3, description="Largest KL divergence of a published version.")
    level: CertifiedLevel = Field(
        default="proved", description="Level that the bound must reach. `retrained` always trains from scratch."
    )
    rungs: list[RungName] = Field(
        default=list(DEFAULT_RUNGS),
        min_length=1,
        description="Allowed rungs, in the order in which they are tried. `reweight` and `temper` are allowed only "
        "where named: their weights reveal the forgotten rows to readers of the posterior. For samples of a network, "
        "name `reweight`: it reads the forgotten rows alone and needs no Hessian.",
    )
    seconds: float | None = Field(
        default=None, gt=0, le=30 * 86_400, description="Seconds after which no further rung is started."
    )
    reference: Reference = Field(
        default=DEFAULT_REFERENCE,
        description="For samples: what a certificate compares them with. `posterior`: the posterior of the retained "
        "rows, which needs draws that pass every check. `stored draws`: the law that the stored draws have, with the "
        "forgotten rows divided out; a weaker promise, and the certificate says so.",
    )

    @model_validator(mode="after")
    def _check_rungs(self) -> Policy:
        if self.rungs != [rung for rung in RUNGS if rung in self.rungs]:
            raise ValueError(f"rungs must be some of {', '.join(RUNGS)}, each once and in this order")
        if self.level == "retrained" and "retrain" not in self.rungs:
            raise ValueError("level 'retrained' needs the rung 'retrain'")
        return self

    def conflict_with(self, family: str, kind: str) -> str | None:
        """Return why no certificate of such a posterior can meet the policy, or None."""
        posteriors = _describe_posteriors(family, kind)
        if self.reference != DEFAULT_REFERENCE and kind != "samples":
            return f"{posteriors} have no stored draws: leave `reference` out, or ask for '{DEFAULT_REFERENCE}'"
        if posteriors == "ensembles" and "retrain" not in self.rungs:
            return "ensembles forget by training members again: allow the rung 'retrain'"
        if posteriors != "variational posteriors" and self.level != "estimated" and "retrain" not in self.rungs:
            return f"certificates of {posteriors} are estimated: ask for level 'estimated', or allow the rung 'retrain'"
        offered = _OFFERED_RUNGS[posteriors]
        if not set(self.rungs) & set(offered):
            *others, last = offered
            return f"{posteriors} have no rung '{self.rungs[0]}': allow {', '.join(others)} or {last}"
        return None


def _describe_posteriors(family: str, kind: str) -> str:
    if not is_network(family) or kind == "ensemble":
        return _PLURALS[kind]
    return "samples of networks" if kind == "samples" else "networks"


class BaseManifest(Strict):
    """Fields that the manifests of all families share."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
    family: str
    posterior: PosteriorKind = Field(
        default="variational",
        description="Content of the file: `variational` parameters (`mean`, `std`), or `samples` of SGLD, SGHMC or "
        "another chain (`samples`, `chain`), or an `ensemble` of networks (`members`, `seed`, `shard`, `recipe`).",
    )
    device: Annotated[Device, CONVERTED] = Field(
        default=Device.CPU,
        description="`cpu`: any worker may process it, on a GPU if it has one. `cuda`: only workers with a GPU may.",
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
    def _check_kind(self) -> BaseManifest:
        if self.posterior == "ensemble" and not is_network(self.family):
            raise ValueError("posterior: only built-in networks have ensembles; register variational parameters")
        return self

    @model_validator(mode="after")
    def _check_policy(self) -> BaseManifest:
        conflict = self.policy.conflict_with(self.family, self.posterior)
        if conflict is not None:
            raise ValueError(f"policy: {conflict}")
        return self


class BuiltInManifest(BaseManifest):
    """Manifest of a built-in family."""

    config: FamilyConfig

    @property
    def layout(self) -> Layout:
        return self.config.layout


class InstalledFamilyManifest(BaseManifest):
    """A family of another package, found by its entry point in the group `lethe.families`."""

    family: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,50}$")] = Field(
        json_schema_extra={"not": {"enum": [*FAMILIES]}}
    )
    config: dict[str, JsonValue] = Field(description="Configuration as the family documents it; the worker checks it.")

    @field_validator("family")
    @classmethod
    def _check_installed(cls, family: str) -> str:
        available = entry_points_by_family()
        if family not in available:
            raise ValueError(f"is not installed: use one of {', '.join(sorted(available))}, or install its package")
        return family

    @field_validator("config")
    @classmethod
    def _check_signable(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            size = len(canonical_json(config))
        except (ValueError, RecursionError):
            raise ValueError("has numbers or text that JSON cannot represent exactly: certificates repeat it") from None
        if size > MAX_CONFIG_BYTES:
            raise ValueError(f"is larger than {MAX_CONFIG_BYTES} bytes: certificates repeat it")
        return config


def family_tag(value: Any) -> str:
    """Return which manifest to validate against: that of a built-in family, or "installed" for any other."""
    family = value.get("family") if isinstance(value, dict) else getattr(value, "family", None)
    return family if isinstance(family, str) and family in FAMILIES else "installed"


def _manifest_class(name: str, family: BuiltInFamily) -> type[BuiltInManifest]:
    title = f"{family.config.__name__.removesuffix('Config')}Manifest"
    fields: dict[str, Any] = {"family": Literal[name], "config": family.config}
    return create_model(title, __base__=BuiltInManifest, __module__=__name__, **fields)


def manifest_union() -> Any:
    """Return the union of the manifests of all built-in families and of installed ones, told apart by `family`."""
    built_in = [Annotated[_manifest_class(name, family), Tag(name)] for name, family in FAMILIES.items()]
    installed = Annotated[InstalledFamilyManifest, Tag("installed")]
    return Annotated[reduce(or_, [*built_in, installed]), Discriminator(family_tag)]


if TYPE_CHECKING:
    Manifest = BuiltInManifest | InstalledFamilyManifest
else:
    Manifest = manifest_union()


def _check_relative(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("must be a path relative to the import root that stays inside it")
    return path


RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_check_relative)]


class Location(Strict):
    """Paths of a registration's files, relative to the service's import root."""

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
    state: Literal["active", "destroyed"] = Field(
        description="`destroyed`: its last records were deleted, and the model with all of its files. The certificates "
        "of those deletions say so."
    )
    family: str
    posterior: PosteriorKind
    device: Device = Field(description="Workers that may process it: any (`cpu`), or those with a GPU (`cuda`).")
    config: dict[str, Any]
    policy: Policy
    version: int = Field(description="The current version; of a destroyed model, its last.")
    record_count: int = Field(description="Records of the current version; 0 once the model is destroyed.")
    records_needed: int = Field(
        description="A deletion that leaves fewer records than this ends in the destruction of the model."
    )
    posterior_sha256: str
    dataset_root: DatasetRoot
    readiness: dict[str, Any] | None = Field(
        description="What deletions will get without retraining, how converged the posterior is and what would help. "
        "Null until a worker has checked it, seconds after registration, and once the model is destroyed."
    )
    draws: int | None = Field(description="Draws of a sample set; null for other posteriors, and until it was checked.")
    effective_draws: float | None = Field(
        description="Even draws that they are worth with their weights. Deletions without retraining lower it; a "
        "refresh restores it."
    )
    refresh: RefreshOut | None = Field(
        description="Latest refresh: chains continued by an idle worker for draws with even weights. Null if none was "
        "needed yet."
    )
    created_at: datetime
    destroyed_at: datetime | None


class ModelPage(BaseModel):
    items: list[ModelOut]
    next_cursor: str | None


def model_out(model: Model, version: Version, refresh: Refresh | None) -> ModelOut:
    """Return a model with its current version, or with its last if it was destroyed, and its latest refresh."""
    is_destroyed = model.destroyed_at is not None
    return ModelOut(
        id=model.id,
        name=model.name,
        state="destroyed" if is_destroyed else "active",
        family=model.family,
        posterior=model.posterior_kind,
        device=model.device,
        config=model.config,
        policy=Policy.model_validate(model.policy),
        version=version.number,
        record_count=0 if is_destroyed else version.record_count,
        records_needed=records_needed(model.family, model.config),
        posterior_sha256=version.posterior_digest,
        dataset_root=version.dataset_root,
        readiness=None if is_destroyed else version.readiness,
        draws=version.draws,
        effective_draws=version.effective_draws,
        refresh=None if refresh is None else refresh_out(refresh),
        created_at=model.created_at,
        destroyed_at=model.destroyed_at,
    )
