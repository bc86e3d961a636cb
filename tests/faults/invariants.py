"""Invariants that hold after any fault. Each violation is described in a sentence."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sqlalchemy import func, make_url, select
from sqlalchemy.orm import Session

from lethe.log_audit import replay
from lethe.verify.checkpoints import open_checkpoint
from lethe.verify.keys import load_keys
from service.settings import Settings
from service.store.database import Database
from service.store.log import sequencing
from service.store.signing.keys import open_signer
from service.store.tables import AuditEntry, Batch, Certificate, Checkpoint, Deletion, DeletionTarget
from tests.faults.byte_scan import files_with
from tests.faults.model_invariants import MAX_IN_CLAUSE, ModelState
from tests.faults.population import Population


@dataclass(frozen=True)
class Scenario:
    """A database, the models registered in it, and the people of each deletion.

    No person is named by two deletions: the second would have nothing to forget.
    """

    settings: Settings
    database: Database
    models: Mapping[uuid.UUID, Population]
    deletions: Mapping[uuid.UUID, Collection[int]]
    bucket: Path | None = None
    """Folder of the S3 server, if the files are in a bucket."""

    def folders(self) -> list[Path]:
        """Return the folders that hold everything that the service stores, except the files of PostgreSQL."""
        url = make_url(self.settings.database)
        database = [Path(url.database).parent] if url.drivername == "sqlite" and url.database else []
        return [self.settings.data_dir, *database, *([self.bucket] if self.bucket else [])]

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
    signer = open_signer(settings, database)
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
            forgotten = population.rows_of(scenario.deleted_people())
            model = ModelState(session, scenario.settings, model_id, population, forgotten)
            yield from (f"model {model_id}: {sentence}" for sentence in model.violations())
    yield from _forgotten_rows(scenario)


def _forgotten_rows(scenario: Scenario) -> Iterator[str]:
    """No byte of any file belongs to a forgotten row."""
    people = scenario.deleted_people()
    rows = [population.points[sorted(population.rows_of(people))] for population in scenario.models.values()]
    for path in files_with(np.concatenate(rows), scenario.folders()):
        yield f"the file {path} holds a number of a forgotten row"


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
