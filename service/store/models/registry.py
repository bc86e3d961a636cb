"""Models, their versions and policies, and registration."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, insert, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.access.identities import ensure_subjects
from service.store.artifacts.store import ArtifactStore, adopt, write_ahead
from service.store.database import Database
from service.store.datasets.dataset import Dataset, load_arrays, uploaded_dataset
from service.store.datasets.layouts import check_posterior, check_row_count, check_rows
from service.store.datasets.tensor_files import Content, Piece
from service.store.datasets.tree import DatasetTree
from service.store.errors import DiskFull, InvalidRegistration, NotFound
from service.store.models import policies
from service.store.paging import Page, Position, Window, cut, newest_first
from service.store.states import Device
from service.store.tables import Artifact, Model, Record, Version
from vocabulary.layouts import UNKNOWN_LAYOUT, Layout
from vocabulary.posterior_kinds import PosteriorKind


@dataclass(frozen=True)
class Registration:
    """A model as an engineer hands it in. `lookups` holds the keyed hash of each row's subject."""

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
    """What its tensors must look like, as far as the family is known here."""


@dataclass(frozen=True)
class VersionView:
    version: Version
    posterior: Artifact


def register(database: Database, artifacts: ArtifactStore, registration: Registration, actor: str) -> uuid.UUID:
    """Check everything, then store everything: files first, the rows that make them count in one transaction."""
    dataset = uploaded_dataset(registration.records)
    _check_fit(registration, dataset)
    root = DatasetTree.of(dataset).root
    model_id = uuid.uuid4()
    files: dict[str, Sequence[Piece]] = {"posterior": [registration.posterior], "dataset": dataset.pieces()}
    if registration.never_seen is not None:
        files["never_seen"] = [registration.never_seen]
    digests = _store_files(database, artifacts, model_id, files)
    posterior_digest, dataset_digest = digests["posterior"], digests["dataset"]
    never_seen_digest = digests.get("never_seen")
    with database.writing() as session:
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
    """The digest of each, by kind. On a full disk what was stored makes room at once, not when its row is due."""
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
        raise NotFound(f"there is no model {model_id}")
    return model


def current_version(session: Session, model_id: uuid.UUID) -> Version:
    return session.scalars(select(Version).where(Version.model_id == model_id, Version.superseded_at.is_(None))).one()


def page(session: Session, window: Window) -> Page[tuple[Model, Version]]:
    """Models with their current versions, newest first."""
    query = select(Model, Version).join(Version, and_(Version.model_id == Model.id, Version.superseded_at.is_(None)))
    rows = [
        (model, version) for model, version in session.execute(newest_first(query, Model.created_at, Model.id, window))
    ]
    return cut(rows, window, lambda row: Position(row[0].created_at, row[0].id))


def page_of_versions(session: Session, model_id: uuid.UUID, window: Window) -> Page[VersionView]:
    """All versions that a model ever had, newest first, with what became of their posteriors."""
    find_model(session, model_id)
    of_version = and_(Artifact.model_id == Version.model_id, Artifact.digest == Version.posterior_digest)
    query = select(Version, Artifact).join(Artifact, of_version).where(Version.model_id == model_id)
    rows = session.execute(newest_first(query, Version.created_at, Version.id, window))
    views = [VersionView(version, artifact) for version, artifact in rows]
    return cut(views, window, lambda view: Position(view.version.created_at, view.version.id))


def change_policy(session: Session, model_id: uuid.UUID, policy: dict[str, Any], actor: str) -> Model:
    """For requests from now on, and where it is stricter for those that wait. Setting what is set is not logged."""
    # A claim locks the same row, so that a batch works by the old policy or by the new one.
    model = session.scalar(select(Model).where(Model.id == model_id).with_for_update())
    if model is None:
        raise NotFound(f"there is no model {model_id}")
    if model.policy != policy:
        policies.freeze(session, model_id, model.policy)
        audit.record(session, actor, "policy.changed", model_id, old=model.policy, new=policy)
        model.policy = policy
    return model


def unchecked(session: Session, model_id: uuid.UUID | None = None) -> Sequence[Version]:
    """Current versions of which no worker has said yet what can be certified: of one model, or of all."""
    wanted = select(Version).where(Version.superseded_at.is_(None), Version.readiness.is_(None))
    return session.scalars(wanted if model_id is None else wanted.where(Version.model_id == model_id)).all()


def record_readiness(session: Session, version_id: uuid.UUID, readiness: dict[str, Any]) -> None:
    session.get_one(Version, version_id).readiness = readiness


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
            "subjects", f"{len(registration.lookups)} subjects for {len(dataset.records)} rows; give one for each row"
        )
    layout = registration.layout
    check_posterior(layout, registration.posterior_kind, load_arrays("posterior", registration.posterior))
    check_rows(layout, "records", dataset.arrays)
    check_row_count(layout, len(dataset.records))
    if registration.never_seen is not None:
        check_rows(layout, "never_seen", load_arrays("never_seen", registration.never_seen))
