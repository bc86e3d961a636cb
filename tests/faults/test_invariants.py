"""Each sabotage of a healthy database violates an invariant of the fault tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from service.settings import Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.store import draft_name
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.states import BatchStatus
from service.store.tables import AuditEntry, Batch, Certificate, Deletion, Record, Version, now
from tests import samples
from tests.faults.invariants import Scenario, check, violations
from tests.faults.population import draw_population, register_population
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def scenario(settings: Settings, database: Database) -> Scenario:
    """A healthy database: a model with ten people, and two batches."""
    population = draw_population(range(10), 3, seed=1)
    model_id = register_population(settings, database, population)
    context = WorkerContext.open(settings)
    deletions = {}
    for people in ((1, 2), (5,)):
        deletions[samples.request_deletion(settings, database, *people).deletion.id] = people
        assert forget_pending(context, model_id)
    context.database.close()
    return Scenario(settings, database, {model_id: population}, deletions)


def test_a_healthy_database_has_no_violation(scenario: Scenario) -> None:
    check(scenario, "nothing")


def lose_a_certificate(session: Session) -> None:
    session.delete(session.scalars(select(Certificate).limit(1)).one())


def forge_a_certificate(session: Session) -> None:
    certificate = session.scalars(select(Certificate).limit(1)).one()
    certificate.bundle = certificate.bundle.replace('"sig":"', '"sig":"A', 1)


def log_a_certificate_twice(session: Session) -> None:
    entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "certificate.issued").limit(1)).one()
    copy = {"actor": entry.actor, "action": entry.action, "concerns": entry.concerns, "details": entry.details}
    session.execute(insert(AuditEntry).values(copy))


def leave_a_batch_running(session: Session) -> None:
    expires = now() + timedelta(hours=1)
    model_id = session.scalars(select(Version.model_id).limit(1)).one()
    session.add(Batch(model_id=model_id, status=BatchStatus.RUNNING, worker="dead:1", lease_expires_at=expires))


def skip_a_version(session: Session) -> None:
    session.execute(update(Version).where(Version.number == 3).values(number=4))


def erase_twice(session: Session) -> None:
    entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "records.erased").limit(1)).one()
    entry.details = {**entry.details, "records": entry.details["records"] * 2}


def leave_a_deletion_pending(session: Session) -> None:
    session.execute(update(Deletion).values(status="pending"))


def lose_a_record(session: Session) -> None:
    session.execute(delete(Record).where(Record.record == 0))


SABOTAGES = [
    (lose_a_certificate, "is completed in model"),
    (forge_a_certificate, "is rejected: the signature is not base64"),
    (log_a_certificate_twice, "was logged 2 times"),
    (leave_a_batch_running, "is still running, its lease held by dead:1"),
    (skip_a_version, "its versions are [1, 2, 4], not consecutive"),
    (erase_twice, "batches erased [12, 3] records, but its versions lost [6, 3]"),
    (leave_a_deletion_pending, "is pending, not completed"),
    (lose_a_record, "20 records have an owner, expected 21"),
]


@pytest.mark.parametrize(("sabotage", "sentence"), SABOTAGES, ids=[sabotage.__name__ for sabotage, _ in SABOTAGES])
def test_sabotage_of_the_database_is_reported(
    scenario: Scenario, sabotage: Callable[[Session], None], sentence: str
) -> None:
    with scenario.database.writing() as session:
        sabotage(session)
    with pytest.raises(AssertionError, match="after seed 7"):
        check(scenario, "seed 7")
    sentences = list(violations(scenario))
    assert any(sentence in reported for reported in sentences), sentences


def test_a_flipped_byte_is_reported(scenario: Scenario) -> None:
    (model_id,) = scenario.models
    with scenario.database.reading() as session:
        digest = current_version(session, model_id).dataset_digest
    path = ArtifactFolder(scenario.settings.artifact_dir).path(model_id, digest)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert any("a current file cannot be read" in sentence for sentence in violations(scenario))


def test_an_orphaned_file_is_reported(scenario: Scenario) -> None:
    (model_id,) = scenario.models
    name = draft_name("0" * 64)
    (scenario.settings.artifact_dir / str(model_id) / name).write_bytes(b"rows of somebody")
    assert list(violations(scenario)) == [f"model {model_id}: the file {name} should have been destroyed"]


def test_a_number_of_a_forgotten_row_is_reported(scenario: Scenario) -> None:
    (population,) = scenario.models.values()
    path = scenario.settings.data_dir / "notes"
    path.write_bytes(b"..." + population.points[4].tobytes())  # of person 1
    assert list(violations(scenario)) == [f"the file {path} holds a number of a forgotten row"]


def test_a_lost_deletion_is_reported(scenario: Scenario) -> None:
    """Its person is still in the data, the owners and the posterior, which is reported too."""
    lost_id = uuid.uuid4()
    sentences = list(violations(replace(scenario, deletions={**scenario.deletions, lost_id: (7,)})))
    assert f"deletion {lost_id} is lost, not completed" in sentences
    for ending in (
        "21 records have an owner, expected 18",
        "its data set has 21 rows (21 by its version), not 18",
        "its posterior is not that of the retained rows",
    ):
        assert any(sentence.endswith(ending) for sentence in sentences), ending
