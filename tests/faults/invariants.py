"""Invariants that hold after any fault. Each violation is described in a sentence."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from safetensors.numpy import load
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lethe.log_audit import replay
from lethe.verify import Rejected, verify
from lethe.verify.checkpoints import open_checkpoint
from lethe.verify.keys import load_keys
from service.settings import Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.certificates.bundles import find_certificate
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree
from service.store.errors import ArtifactDamaged, Gone
from service.store.log import sequencing
from service.store.signing.keys import configured_signer
from service.store.tables import AuditEntry, Batch, Certificate, Checkpoint, Deletion, DeletionTarget, Record, Version
from tests.faults.population import Population

MAX_IN_CLAUSE = 500
"""Values in one IN clause; SQLite limits them to some thousands."""


@dataclass(frozen=True)
class Scenario:
    """A database, the models registered in it, and the people of each deletion.

    No person is named by two deletions: the second would have nothing to forget.
    """

    settings: Settings
    database: Database
    models: Mapping[uuid.UUID, Population]
    deletions: Mapping[uuid.UUID, Collection[int]]

    def deleted_people(self) -> set[int]:
        return {person for people in self.deletions.values() for person in people}

    def models_with(self, people: Collection[int]) -> set[uuid.UUID]:
        return {model_id for model_id, population in self.models.items() if population.rows_of(people)}


def check(scenario: Scenario, circumstances: str) -> None:
    """Raise an error with all violations. `circumstances` has the seed and whatever else reproduces them."""
    sentences = list(violations(scenario))
    if sentences:
        omitted = [f"and {len(sentences) - 20} more"] if len(sentences) > 20 else []
        raise AssertionError("\n  ".join([f"after {circumstances}:", *sentences[:20], *omitted]))


def check_log(settings: Settings, database: Database) -> None:
    """Check that the sequencer reaches every entry, and that all signed checkpoints belong to one log."""
    signer = configured_signer(settings)
    with database.writing() as session:
        sequencing.sequence_entries(session, signer)
    with database.reading() as session:
        notes = session.scalars(select(Checkpoint.note)).all()
        leaves = [entry.encode() for entry in sequencing.read_entries(session, 0, sequencing.log_size(session))]
        count = session.scalar(select(func.count()).select_from(AuditEntry))
    ring = load_keys(signer.public_pem.encode())
    assert replay(leaves, [open_checkpoint(note, ring) for note in notes]).entries == count


def violations(scenario: Scenario) -> Iterator[str]:
    with scenario.database.reading() as session:
        yield from _unfinished(session, scenario)
        yield from _uncertified(session, scenario)
        for model_id, population in scenario.models.items():
            versions = session.scalars(
                select(Version).where(Version.model_id == model_id).order_by(Version.number)
            ).all()
            certificates = session.scalars(select(Certificate).where(Certificate.model_id == model_id)).all()
            sentences = [
                *_broken_chain(versions, population),
                *_wrong_steps(session, model_id, versions, certificates),
                *_bad_certificates(session, scenario, versions, certificates),
                *_wrong_content(session, scenario, model_id, versions, population),
            ]
            yield from (f"model {model_id}: {sentence}" for sentence in sentences)


def _unfinished(session: Session, scenario: Scenario) -> Iterator[str]:
    """Every deletion has ended, and no batch is held."""
    status: dict[uuid.UUID, str] = {}
    ids = list(scenario.deletions)
    for start in range(0, len(ids), MAX_IN_CLAUSE):
        rows = session.execute(
            select(Deletion.id, Deletion.status).where(Deletion.id.in_(ids[start : start + MAX_IN_CLAUSE]))
        )
        status.update((row.id, row.status) for row in rows)
    for deletion_id in ids:
        if status.get(deletion_id) != "completed":
            yield f"deletion {deletion_id} is {status.get(deletion_id, 'lost')}, not completed"
    for batch in session.scalars(select(Batch).where(Batch.status == "running", Batch.model_id.in_(scenario.models))):
        yield f"batch {batch.id} is still running, its lease held by {batch.worker}"


def _uncertified(session: Session, scenario: Scenario) -> Iterator[str]:
    """Each deletion has one certificate for each model that held its people."""
    targets = session.execute(
        select(DeletionTarget.deletion_id, DeletionTarget.model_id, DeletionTarget.status).where(
            DeletionTarget.model_id.in_(scenario.models)
        )
    ).all()
    issued = Counter(
        (row.deletion_id, row.model_id)
        for row in session.execute(
            select(Certificate.deletion_id, Certificate.model_id).where(Certificate.model_id.in_(scenario.models))
        )
    )
    expected = {
        (deletion_id, model_id)
        for deletion_id, people in scenario.deletions.items()
        for model_id in scenario.models_with(people)
    }
    for deletion_id, model_id in expected ^ {(row.deletion_id, row.model_id) for row in targets}:
        yield f"deletion {deletion_id} should concern model {model_id} and does not, or vice versa"
    for row in targets:
        count = issued[row.deletion_id, row.model_id]
        if row.status != "completed" or count != 1:
            yield f"deletion {row.deletion_id} is {row.status} in model {row.model_id} with {count} certificates"


def _broken_chain(versions: Sequence[Version], population: Population) -> Iterator[str]:
    numbers = [version.number for version in versions]
    if numbers != list(range(1, len(versions) + 1)):
        yield f"its versions are {numbers}, not consecutive"
    current = [version.number for version in versions if version.superseded_at is None]
    if current != numbers[-1:]:
        yield f"versions {current} are current, not only the last"
    if versions[0].record_count != len(population.points):
        yield f"its first version has {versions[0].record_count} records, not {len(population.points)}"


def _wrong_steps(
    session: Session, model_id: uuid.UUID, versions: Sequence[Version], certificates: Sequence[Certificate]
) -> Iterator[str]:
    """Each version comes from one published batch, and lacks the records that the batch erased."""
    decreases = [before.record_count - after.record_count for before, after in pairwise(versions)]
    entries = session.scalars(
        select(AuditEntry)
        .where(AuditEntry.concerns == str(model_id), AuditEntry.action == "records.erased")
        .order_by(AuditEntry.id)
    )
    erased = [entry.details["records"] for entry in entries]
    if erased != decreases:
        yield f"batches erased {erased} records, but its versions lost {decreases}"
    published = select(Batch.id).where(Batch.model_id == model_id, Batch.status == "published")
    batches_by_version = {
        version.id: {certificate.batch_id for certificate in certificates if certificate.version_id == version.id}
        for version in versions
    }
    batches = [batch_id for version in versions[1:] for batch_id in batches_by_version[version.id]]
    if len(batches) != len(decreases) or set(batches) != set(session.scalars(published)):
        yield f"its {len(decreases)} steps are certified by {len(batches)} batches, or by some that were not published"


def _bad_certificates(
    session: Session, scenario: Scenario, versions: Sequence[Version], certificates: Sequence[Certificate]
) -> Iterator[str]:
    public_key = configured_signer(scenario.settings).public_pem.encode()
    steps = {after.id: (before, after) for before, after in pairwise(versions)}
    entries = select(AuditEntry.concerns).where(AuditEntry.action == "certificate.issued")
    certificate_ids = [str(certificate.id) for certificate in certificates]
    logged: Counter[str] = Counter()
    for start in range(0, len(certificate_ids), MAX_IN_CLAUSE):
        logged.update(
            session.scalars(entries.where(AuditEntry.concerns.in_(certificate_ids[start : start + MAX_IN_CLAUSE])))
        )
    for certificate in certificates:
        if logged[str(certificate.id)] != 1:
            yield f"certificate {certificate.id} was logged {logged[str(certificate.id)]} times"
        try:
            predicate = verify(find_certificate(session, certificate.id, caller=None).encode(), public_key).predicate
        except Rejected as reason:
            yield f"certificate {certificate.id} is rejected: {reason}"
            continue
        before, after = steps[certificate.version_id]
        counts = {"before": before.record_count, "after": after.record_count}
        datasets = {
            side: {"digest": version.dataset_digest, "root": version.dataset_root, "records": version.record_count}
            for side, version in (("before", before), ("after", after))
        }
        records = {**counts, "forgotten_in_batch": before.record_count - after.record_count}
        expected = {"deletion": str(certificate.deletion_id), "records": records, "dataset": datasets}
        if {name: predicate[name] for name in expected} != expected:
            yield f"certificate {certificate.id} does not describe the step {before.number} -> {after.number}"


def _wrong_content(
    session: Session, scenario: Scenario, model_id: uuid.UUID, versions: Sequence[Version], population: Population
) -> Iterator[str]:
    """The current files match their digests, hold exactly the retained rows, and are the only files."""
    current, store = versions[-1], ArtifactFolder(scenario.settings.artifact_dir)
    names = {path.name for path in (scenario.settings.artifact_dir / str(model_id)).iterdir()}
    for name in names - {current.posterior_digest, current.dataset_digest}:
        yield f"the file {name} should have been deleted"
    forgotten = population.rows_of(scenario.deleted_people())
    expected = [row for row in range(len(population.points)) if row not in forgotten]
    rows = session.scalars(select(Record.record).where(Record.model_id == model_id).order_by(Record.record)).all()
    if list(rows) != expected:
        yield f"{len(rows)} records have an owner, expected {len(expected)}"
    try:
        dataset = load_dataset(store.get(model_id, current.dataset_digest))
        posterior = load(store.get(model_id, current.posterior_digest))
    except (ArtifactDamaged, Gone) as error:
        yield f"a current file cannot be read: {error}"
        return
    if dataset.records.tolist() != expected or current.record_count != len(expected):
        counts = f"{len(dataset.records)} rows ({current.record_count} by its version)"
        yield f"its data set has {counts}, not {len(expected)}"
    elif current.dataset_root != DatasetTree.from_dataset(dataset).root:
        yield "its data set has another root than its version states"
    elif not np.array_equal(dataset.arrays["x"], population.points[expected]):
        yield "its data set has other values than were registered"
    exact = population.posterior_without(forgotten)
    if not all(np.allclose(posterior[name], exact[name], atol=1e-9) for name in exact):
        yield "its posterior is not that of the retained rows"
