"""The invariants of the fault tests can fail: each sabotage of a healthy database is complained of, in words."""

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
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.states import BatchStatus
from service.store.tables import AuditEntry, Batch, Certificate, Deletion, Record, Version, now
from tests import samples
from tests.faults.invariants import World, check, violations
from tests.faults.population import draw, register_population
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def world(settings: Settings, database: Database) -> World:
    """Healthy: two batches, one after the other, of a model with ten people."""
    population = draw(range(10), 3, seed=1)
    model_id = register_population(settings, database, population)
    context = WorkerContext.open(settings)
    asked = {}
    for people in ((1, 2), (5,)):
        asked[samples.request_deletion(settings, database, *people).deletion.id] = people
        assert forget_pending(context, model_id)
    context.database.close()
    return World(settings, database, {model_id: population}, asked)


def test_a_healthy_database_has_no_violation(world: World) -> None:
    check(world, "nothing")


def lose_a_certificate(session: Session) -> None:
    session.delete(session.scalars(select(Certificate).limit(1)).one())


def forge_a_certificate(session: Session) -> None:
    certificate = session.scalars(select(Certificate).limit(1)).one()
    certificate.bundle = certificate.bundle.replace('"sig":"', '"sig":"A', 1)


def log_a_certificate_twice(session: Session) -> None:
    entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "certificate.issued").limit(1)).one()
    twin = {"actor": entry.actor, "action": entry.action, "concerns": entry.concerns, "details": entry.details}
    session.execute(insert(AuditEntry).values(twin))


def leave_a_batch_running(session: Session) -> None:
    expires = now() + timedelta(hours=1)
    model_id = session.scalars(select(Version.model_id).limit(1)).one()
    session.add(Batch(model_id=model_id, status=BatchStatus.RUNNING, worker="gone:1", lease_expires_at=expires))


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
    (leave_a_batch_running, "is still running, its lease held by gone:1"),
    (skip_a_version, "its versions are [1, 2, 4], which is no chain"),
    (erase_twice, "batches erased [12, 3] records, its versions have [6, 3] less"),
    (leave_a_deletion_pending, "is pending, not completed"),
    (lose_a_record, "20 records have an owner, 21 should have"),
]


@pytest.mark.parametrize(("sabotage", "complaint"), SABOTAGES, ids=[one.__name__ for one, _ in SABOTAGES])
def test_sabotage_of_the_database_is_complained_of(
    world: World, sabotage: Callable[[Session], None], complaint: str
) -> None:
    with world.database.writing() as session:
        sabotage(session)
    with pytest.raises(AssertionError, match="after seed 7"):
        check(world, "seed 7")
    assert any(complaint in sentence for sentence in violations(world)), list(violations(world))


def test_a_flipped_byte_is_complained_of(world: World) -> None:
    (model_id,) = world.models
    with world.database.reading() as session:
        digest = current_version(session, model_id).dataset_digest
    path = ArtifactFolder(world.settings.artifact_dir).path(model_id, digest)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert any("a current file cannot be read" in sentence for sentence in violations(world))


def test_a_file_left_behind_is_complained_of(world: World) -> None:
    (model_id,) = world.models
    (world.settings.artifact_dir / str(model_id) / "left-behind").write_bytes(b"rows of somebody")
    assert [sentence.split(": ")[1] for sentence in violations(world)] == ["the file left-behind should be gone"]


def test_a_deletion_that_was_lost_is_complained_of(world: World) -> None:
    """And with it that its person is still in the data, the owners and the posterior."""
    lost = uuid.uuid4()
    found = list(violations(replace(world, asked={**world.asked, lost: (7,)})))
    assert f"deletion {lost} is lost, not completed" in found
    for sentence in (
        "21 records have an owner, 18 should have",
        "its data set has 21 rows (21 by its version), not 18",
        "its posterior is not that of the retained rows",
    ):
        assert any(told.endswith(sentence) for told in found), sentence
