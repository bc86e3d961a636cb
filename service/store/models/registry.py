"""Registry of models: registration, versions, policies and readiness."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, insert, or_, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.access.identities import ensure_subjects
from service.store.access.secret_checks import CheckValue, require_match
from service.store.artifacts.store import ArtifactStore, adopt, write_ahead
from service.store.database import Database
from service.store.datasets.dataset import Dataset, load_arrays, parse_dataset_upload
from service.store.datasets.layouts import check_posterior, check_row_count, check_rows, check_shards
from service.store.datasets.tensor_files import Content, Piece
from service.store.datasets.tree import DatasetTree
from service.store.errors import DiskFull, Gone, InvalidRegistration, NotFound
from service.store.models import policies
from service.store.paging import Page, Position, Window, make_page, newest_first
from service.store.states import Device
from service.store.tables import Artifact, Model, Record, Version
from vocabulary.layouts import UNKNOWN_LAYOUT, Layout
from vocabulary.posterior_kinds import PosteriorKind


@dataclass(frozen=True)
class Registration:
    """A model to be registered. `lookups` holds the keyed hash of each row's subject."""

    name: str
    family: str
    config: dict[str, Any]
    policy: dict[str, Any]
    posterior: Content
    records: Content
    lookups: Sequence[bytes]
    never_seen: Content | None = None
    posterior_kind: PosteriorKind = "variational"
    device: Device = Device.CPU
    layout: Layout = UNKNOWN_LAYOUT
    """Expected tensor shapes; unknown for families whose code is installed only on the workers."""
    identity_check: CheckValue | None = None
    """Check value of the keys that made the lookups."""


@dataclass(frozen=True)
class DrawCount:
    """Draws of a sample set, and the number of even draws that they are worth with their weights."""

    total: int
    effective: float


@dataclass(frozen=True)
class VersionView:
    version: Version
    posterior: Artifact


def register(database: Database, artifacts: ArtifactStore, registration: Registration, actor: str) -> uuid.UUID:
    """Check the model, store its files, then add all rows in one transaction. Return the model id."""
    dataset = parse_dataset_upload(registration.records)
    _check_fit(registration, dataset)
    root = DatasetTree.from_dataset(dataset).root
    model_id = uuid.uuid4()
    files: dict[str, Sequence[Piece]] = {"posterior": [registration.posterior], "dataset": dataset.pieces()}
    if registration.never_seen is not None:
        files["never_seen"] = [registration.never_seen]
    digests = _store_files(database, artifacts, model_id, files)
    posterior_digest, dataset_digest = digests["posterior"], digests["dataset"]
    never_seen_digest = digests.get("never_seen")
    with database.writing() as session:
        if registration.identity_check is not None:
            require_match(session, registration.identity_check)
        _add_model(session, model_id, registration, never_seen_digest)
        session.add(
            Version(
                model_id=model_id,
                number=1,
                posterior_digest=posterior_digest,
                dataset_digest=dataset_digest,
                dataset_root=root,
                record_count=len(dataset.records),
            )
        )
        for digest in digests.values():
            adopt(session, model_id, digest)
        audit.record(session, actor, "model.registered", model_id, posterior=posterior_digest, dataset=dataset_digest)
    return model_id


def _store_files(
    database: Database, artifacts: ArtifactStore, model_id: uuid.UUID, files: Mapping[str, Sequence[Piece]]
) -> dict[str, str]:
    """Store the files and return their digests by kind. On a full disk, destroy what was stored at once."""
    digests: dict[str, str] = {}
    try:
        for kind, pieces in files.items():
            digests[kind] = write_ahead(database, artifacts, model_id, kind, *pieces)
    except DiskFull:
        for digest in digests.values():
            artifacts.destroy(model_id, digest)
        raise
    return digests


def find_model(session: Session, model_id: uuid.UUID) -> Model:
    model = session.get(Model, model_id)
    if model is None:
        raise NotFound(f"model {model_id} not found")
    return model


def require_existing(model: Model) -> None:
    """Raises Gone if the model was destroyed."""
    if model.destroyed_at is not None:
        raise Gone(
            f"model {model.id} was destroyed at {model.destroyed_at:%Y-%m-%d %H:%M:%S} UTC, when its last records were "
            "deleted; the certificates of those deletions say so. Register a new model"
        )


def current_version(session: Session, model_id: uuid.UUID) -> Version:
    return session.scalars(select(Version).where(Version.model_id == model_id, Version.superseded_at.is_(None))).one()


def last_version(session: Session, model_id: uuid.UUID) -> Version:
    """Return the current version, or that of a destroyed model's end."""
    newest = select(Version).where(Version.model_id == model_id).order_by(Version.number.desc()).limit(1)
    return session.scalars(newest).one()


def count_records(session: Session, model_id: uuid.UUID) -> int:
    """Return the number of records of the current version; 0 if the model was destroyed."""
    current = select(Version.record_count).where(Version.model_id == model_id, Version.superseded_at.is_(None))
    return session.scalar(current) or 0


def find_model_page(
    session: Session, window: Window, model_ids: Collection[uuid.UUID] | None = None
) -> Page[tuple[Model, Version]]:
    """Return models with their last versions, newest first; with `model_ids`, only these."""
    # A model is destroyed at the time at which its last version is superseded.
    is_last = or_(Version.superseded_at.is_(None), Version.superseded_at == Model.destroyed_at)
    query = select(Model, Version).join(Version, and_(Version.model_id == Model.id, is_last))
    if model_ids is not None:
        query = query.where(Model.id.in_(model_ids))
    rows = [
        (model, version) for model, version in session.execute(newest_first(query, Model.created_at, Model.id, window))
    ]
    return make_page(rows, window, lambda row: Position(row[0].created_at, row[0].id))


def find_version_page(session: Session, model_id: uuid.UUID, window: Window) -> Page[VersionView]:
    """Return all versions of a model with the state of their posteriors, newest first."""
    find_model(session, model_id)
    is_posterior = and_(Artifact.model_id == Version.model_id, Artifact.digest == Version.posterior_digest)
    query = select(Version, Artifact).join(Artifact, is_posterior).where(Version.model_id == model_id)
    rows = session.execute(newest_first(query, Version.created_at, Version.id, window))
    views = [VersionView(version, artifact) for version, artifact in rows]
    return make_page(views, window, lambda view: Position(view.version.created_at, view.version.id))


def change_policy(session: Session, model_id: uuid.UUID, policy: dict[str, Any], actor: str) -> Model:
    """Set the policy for new requests, and for waiting ones where it is stricter. An unchanged policy is not logged."""
    # A claim locks the same row, so a batch uses either the old policy or the new one.
    model = session.scalar(select(Model).where(Model.id == model_id).with_for_update())
    if model is None:
        raise NotFound(f"model {model_id} not found")
    require_existing(model)
    if model.policy != policy:
        policies.freeze(session, model_id, model.policy)
        audit.record(session, actor, "policy.changed", model_id, old=model.policy, new=policy)
        model.policy = policy
    return model


def versions_without_readiness(session: Session, model_id: uuid.UUID | None = None) -> Sequence[Version]:
    """Return current versions whose readiness no worker has checked yet, of one model or of all."""
    query = select(Version).where(Version.superseded_at.is_(None), Version.readiness.is_(None))
    return session.scalars(query if model_id is None else query.where(Version.model_id == model_id)).all()


def record_readiness(
    session: Session,
    version_id: uuid.UUID,
    readiness: dict[str, Any],
    draws: DrawCount | None = None,
) -> None:
    """Record a worker's check of a version; of a sample set, with its draws."""
    version = session.get_one(Version, version_id)
    version.readiness = readiness
    count_draws(version, draws)


def count_draws(version: Version, draws: DrawCount | None) -> None:
    """Set the columns of a version that count its draws."""
    version.draws, version.effective_draws = (draws.total, draws.effective) if draws is not None else (None, None)


def _add_model(
    session: Session, model_id: uuid.UUID, registration: Registration, never_seen_digest: str | None
) -> None:
    session.add(
        Model(
            id=model_id,
            name=registration.name,
            family=registration.family,
            posterior_kind=registration.posterior_kind,
            device=registration.device,
            config=registration.config,
            policy=registration.policy,
            never_seen_digest=never_seen_digest,
        )
    )
    session.flush()
    subjects = ensure_subjects(session, registration.lookups)
    session.execute(
        insert(Record),
        [
            {"model_id": model_id, "record": number, "subject_id": subjects[lookup].id}
            for number, lookup in enumerate(registration.lookups)
        ],
    )


def _check_fit(registration: Registration, dataset: Dataset) -> None:
    if len(registration.lookups) != len(dataset.records):
        raise InvalidRegistration(
            "subjects",
            f"{len(registration.lookups)} subjects for {len(dataset.records)} rows; list one subject per row",
        )
    layout, kind = registration.layout, registration.posterior_kind
    posterior = load_arrays("posterior", registration.posterior)
    check_posterior(layout, kind, posterior)
    if kind == "ensemble":
        check_shards(posterior["shard"], registration.lookups)
    check_rows(layout, kind, "records", dataset.arrays)
    check_row_count(layout, len(dataset.records))
    if registration.never_seen is not None:
        check_rows(layout, kind, "never_seen", load_arrays("never_seen", registration.never_seen))
