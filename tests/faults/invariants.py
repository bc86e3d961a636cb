"""What must hold after any fault. Each check says in words what is wrong, so that a failure explains itself."""

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
from service.store.signing.statements import StatementSigner
from service.store.tables import AuditEntry, Batch, Certificate, Checkpoint, Deletion, DeletionTarget, Record, Version
from tests.faults.population import Population

MANY = 500
"""Names in one IN clause; SQLite takes no more than some thousands."""


@dataclass(frozen=True)
class World:
    """Where to look, and what was done there: which models were registered, and whom each deletion names.

    No person is named by two deletions, since the second would find nothing left to forget.
    """

    settings: Settings
    database: Database
    models: Mapping[uuid.UUID, Population]
    asked: Mapping[uuid.UUID, Collection[int]]

    def people_asked(self) -> set[int]:
        return {person for people in self.asked.values() for person in people}

    def concerned(self, people: Collection[int]) -> set[uuid.UUID]:
        return {model_id for model_id, population in self.models.items() if population.rows_of(people)}


def check(world: World, circumstances: str) -> None:
    """Raise with everything that is wrong. `circumstances` are the seed and whatever else makes it happen again."""
    found = list(violations(world))
    if found:
        more = [f"and {len(found) - 20} more"] if len(found) > 20 else []
        raise AssertionError("\n  ".join([f"after {circumstances}:", *found[:20], *more]))


def check_log(settings: Settings, database: Database) -> None:
    """Every entry has its place once the sequencer has run, and all checkpoints ever signed are of one log."""
    signer = StatementSigner(settings.signing_key_bytes(), settings.origin)
    with database.writing() as session:
        sequencing.sequence_entries(session, signer)
    with database.reading() as session:
        notes = session.scalars(select(Checkpoint.note)).all()
        leaves = [entry.encode() for entry in sequencing.read_entries(session, 0, sequencing.log_size(session))]
        count = session.scalar(select(func.count()).select_from(AuditEntry))
    ring = load_keys(signer.public_pem.encode())
    assert replay(leaves, [open_checkpoint(note, ring) for note in notes]).entries == count


def violations(world: World) -> Iterator[str]:
    with world.database.reading() as session:
        yield from _unfinished(session, world)
        yield from _uncertified(session, world)
        for model_id, population in world.models.items():
            versions = session.scalars(
                select(Version).where(Version.model_id == model_id).order_by(Version.number)
            ).all()
            certificates = session.scalars(select(Certificate).where(Certificate.model_id == model_id)).all()
            told = [
                *_broken_chain(versions, population),
                *_wrong_steps(session, model_id, versions, certificates),
                *_bad_certificates(session, world, versions, certificates),
                *_wrong_content(session, world, model_id, versions, population),
            ]
            yield from (f"model {model_id}: {sentence}" for sentence in told)


def _unfinished(session: Session, world: World) -> Iterator[str]:
    """Every deletion ended, and nobody holds anything any more."""
    status: dict[uuid.UUID, str] = {}
    ids = list(world.asked)
    for start in range(0, len(ids), MANY):
        rows = session.execute(select(Deletion.id, Deletion.status).where(Deletion.id.in_(ids[start : start + MANY])))
        status.update((row.id, row.status) for row in rows)
    for deletion_id in ids:
        if status.get(deletion_id) != "completed":
            yield f"deletion {deletion_id} is {status.get(deletion_id, 'lost')}, not completed"
    for batch in session.scalars(select(Batch).where(Batch.status == "running", Batch.model_id.in_(world.models))):
        yield f"batch {batch.id} is still running, its lease held by {batch.worker}"


def _uncertified(session: Session, world: World) -> Iterator[str]:
    """Each deletion reached each model that held its people, and has one certificate for each."""
    targets = session.execute(
        select(DeletionTarget.deletion_id, DeletionTarget.model_id, DeletionTarget.status).where(
            DeletionTarget.model_id.in_(world.models)
        )
    ).all()
    issued = Counter(
        (row.deletion_id, row.model_id)
        for row in session.execute(
            select(Certificate.deletion_id, Certificate.model_id).where(Certificate.model_id.in_(world.models))
        )
    )
    expected = {(one, model_id) for one, people in world.asked.items() for model_id in world.concerned(people)}
    for deletion_id, model_id in expected ^ {(row.deletion_id, row.model_id) for row in targets}:
        yield f"deletion {deletion_id} should concern model {model_id} and does not, or the other way round"
    for row in targets:
        count = issued[row.deletion_id, row.model_id]
        if row.status != "completed" or count != 1:
            yield f"deletion {row.deletion_id} is {row.status} in model {row.model_id} with {count} certificates"


def _broken_chain(versions: Sequence[Version], population: Population) -> Iterator[str]:
    numbers = [version.number for version in versions]
    if numbers != list(range(1, len(versions) + 1)):
        yield f"its versions are {numbers}, which is no chain"
    current = [version.number for version in versions if version.superseded_at is None]
    if current != numbers[-1:]:
        yield f"versions {current} are current, not only the last"
    if versions[0].record_count != len(population.points):
        yield f"its first version has {versions[0].record_count} records, not {len(population.points)}"


def _wrong_steps(
    session: Session, model_id: uuid.UUID, versions: Sequence[Version], certificates: Sequence[Certificate]
) -> Iterator[str]:
    """Each version comes from one published batch, and has as many records less as that batch erased."""
    falls = [before.record_count - after.record_count for before, after in pairwise(versions)]
    entries = session.scalars(
        select(AuditEntry)
        .where(AuditEntry.concerns == str(model_id), AuditEntry.action == "records.erased")
        .order_by(AuditEntry.id)
    )
    erased = [entry.details["records"] for entry in entries]
    if erased != falls:
        yield f"batches erased {erased} records, its versions have {falls} less"
    published = select(Batch.id).where(Batch.model_id == model_id, Batch.status == "published")
    made_by = {
        version.id: {one.batch_id for one in certificates if one.version_id == version.id} for version in versions
    }
    batches = [batch_id for version in versions[1:] for batch_id in made_by[version.id]]
    if len(batches) != len(falls) or set(batches) != set(session.scalars(published)):
        yield f"its {len(falls)} steps are certified by {len(batches)} batches, or by some that were not published"


def _bad_certificates(
    session: Session, world: World, versions: Sequence[Version], certificates: Sequence[Certificate]
) -> Iterator[str]:
    public_key = StatementSigner(world.settings.signing_key_bytes()).public_pem.encode()
    steps = {after.id: (before, after) for before, after in pairwise(versions)}
    entries = select(AuditEntry.concerns).where(AuditEntry.action == "certificate.issued")
    wanted = [str(certificate.id) for certificate in certificates]
    logged: Counter[str] = Counter()
    for start in range(0, len(wanted), MANY):
        logged.update(session.scalars(entries.where(AuditEntry.concerns.in_(wanted[start : start + MANY]))))
    for certificate in certificates:
        if logged[str(certificate.id)] != 1:
            yield f"certificate {certificate.id} was logged {logged[str(certificate.id)]} times"
        try:
            says = verify(find_certificate(session, certificate.id, caller=None).encode(), public_key).predicate
        except Rejected as reason:
            yield f"certificate {certificate.id} is rejected: {reason}"
            continue
        before, after = steps[certificate.version_id]
        counts = {"before": before.record_count, "after": after.record_count}
        datasets = {
            side: {"digest": one.dataset_digest, "root": one.dataset_root, "records": one.record_count}
            for side, one in (("before", before), ("after", after))
        }
        facts = {**counts, "forgotten_in_batch": before.record_count - after.record_count}
        if (says["deletion"], says["records"], says["dataset"]) != (str(certificate.deletion_id), facts, datasets):
            yield f"certificate {certificate.id} speaks of another step than from {before.number} to {after.number}"


def _wrong_content(
    session: Session, world: World, model_id: uuid.UUID, versions: Sequence[Version], population: Population
) -> Iterator[str]:
    """The current files are what they are named after, hold exactly the retained rows, and are the only ones."""
    current, store = versions[-1], ArtifactFolder(world.settings.artifact_dir)
    left = {path.name for path in (world.settings.artifact_dir / str(model_id)).iterdir()}
    for name in left - {current.posterior_digest, current.dataset_digest}:
        yield f"the file {name} should be gone"
    forgotten = population.rows_of(world.people_asked())
    expected = [row for row in range(len(population.points)) if row not in forgotten]
    rows = session.scalars(select(Record.record).where(Record.model_id == model_id).order_by(Record.record)).all()
    if list(rows) != expected:
        yield f"{len(rows)} records have an owner, {len(expected)} should have"
    try:
        dataset = load_dataset(store.get(model_id, current.dataset_digest))
        posterior = load(store.get(model_id, current.posterior_digest))
    except (ArtifactDamaged, Gone) as error:
        yield f"a current file cannot be read: {error}"
        return
    if dataset.records.tolist() != expected or current.record_count != len(expected):
        stated = f"{len(dataset.records)} rows ({current.record_count} by its version)"
        yield f"its data set has {stated}, not {len(expected)}"
    elif current.dataset_root != DatasetTree.from_dataset(dataset).root:
        yield "its data set has another root than its version states"
    elif not np.array_equal(dataset.arrays["x"], population.points[expected]):
        yield "its data set has other values than were registered"
    truth = population.posterior_without(forgotten)
    if not all(np.allclose(posterior[name], truth[name], atol=1e-9) for name in truth):
        yield "its posterior is not that of the retained rows"
