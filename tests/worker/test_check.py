from __future__ import annotations

from service.settings import Settings
from service.store.database import Database
from service.store.models import current_version
from tests import samples
from worker.check import check_current
from worker.forget import forget_pending
from worker.workshop import Workshop


def test_the_readiness_of_the_current_version_is_recorded_once(
    settings: Settings, database: Database, workshop: Workshop
) -> None:
    model_id = samples.register_sample(settings, database)
    assert check_current(workshop, model_id) is True
    assert check_current(workshop, model_id) is False
    with database.reading() as session:
        readiness = current_version(session, model_id).readiness
    assert readiness is not None
    assert (readiness["ready"], readiness["levels"], readiness["advice"]) == (True, ["proved"], [])


def test_a_published_version_is_looked_at_anew(settings: Settings, database: Database, workshop: Workshop) -> None:
    model_id = samples.register_sample(settings, database)
    check_current(workshop, model_id)
    samples.ask(settings, database, 3)
    forget_pending(workshop, model_id)
    assert check_current(workshop, model_id) is True


def test_a_version_that_cannot_be_read_is_recorded_and_left_alone(
    settings: Settings, database: Database, workshop: Workshop
) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        path = workshop.artifacts.path(model_id, current_version(session, model_id).posterior_digest)
    path.write_bytes(b"not what it was")
    assert check_current(workshop, model_id) is True
    with database.reading() as session:
        readiness = current_version(session, model_id).readiness
    assert readiness is not None
    assert readiness["ready"] is False
    assert "unexpected ArtifactDamaged" in readiness["advice"][0]
    assert check_current(workshop, model_id) is False
