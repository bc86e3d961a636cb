"""Models whose last people leave: the batch that empties a model destroys it, with a certificate."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lethe.verify import Verified, verify
from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.certificates.bundles import find_certificate
from service.store.database import Database
from service.store.deletions.interventions import retry
from service.store.deletions.lifecycle import ALREADY_ERASED
from service.store.deletions.views import NamedRecord, find_view
from service.store.models.registry import Registration, register, versions_without_readiness
from service.store.tables import Artifact, AuditEntry, Batch, Certificate, Model, Record, Subject, Version
from tests import samples
from tests.bundles import key_list
from worker import forget
from worker.context import WorkerContext
from worker.forget import forget_pending

ROWS = samples.PEOPLE * samples.ROWS_EACH


def count(session: Session, table: type[object]) -> int:
    return session.scalar(select(func.count()).select_from(table)) or 0


def verify_certificate(session: Session, context: WorkerContext, deletion_id: uuid.UUID) -> Verified:
    target = find_view(session, deletion_id, caller=None).targets[0]
    assert target.certificate_id is not None
    bundle = find_certificate(session, target.certificate_id, caller=None)
    return verify(bundle.encode(), key_list(context.signer))


def test_a_deletion_of_everybody_destroys_the_model(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    never_seen = save({"x": np.ones((3, 2))})
    model_id = samples.register_sample(settings, database, never_seen=never_seen)
    view = samples.request_deletion(settings, database, *range(samples.PEOPLE))
    assert forget_pending(context, model_id) is True
    assert forget_pending(context, model_id) is False
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
        model, version = session.get_one(Model, model_id), session.scalars(select(Version)).one()
        assert model.destroyed_at is not None
        assert version.superseded_at == model.destroyed_at
        assert (count(session, Record), count(session, Subject)) == (0, 0)
        assert versions_without_readiness(session) == []
        verified = verify_certificate(session, context, view.deletion.id)
        destroyed = {artifact.digest: artifact.destroyed_at for artifact in session.scalars(select(Artifact))}
        row = session.scalars(select(Certificate)).one()
        batch = session.scalars(select(Batch)).one()
        actions = list(session.scalars(select(AuditEntry.action).order_by(AuditEntry.id)))
    assert verified.kind == "certificate of destruction"
    assert verified.predicate["subjects"] == list(view.commitments)
    assert verified.predicate["records"] == {"before": ROWS, "after": 0, "forgotten_in_batch": ROWS}
    assert {file["kind"] for file in verified.predicate["erasure"]["scheduled"]} == {
        "posterior",
        "dataset",
        "never_seen",
    }
    assert {file["digest"] for file in verified.predicate["erasure"]["scheduled"]} == destroyed.keys()
    assert None not in destroyed.values()
    assert not (settings.artifact_dir / str(model_id)).exists()
    assert (row.level, row.epsilon, row.version_id) == ("destroyed", None, version.id)
    assert (batch.status, batch.phase) == ("published", "destroyed")
    assert actions.count("model.destroyed") == actions.count("certificate.issued") == 1
    assert actions[-3:] == ["artifact.destroyed"] * 3


def test_the_last_people_leave_one_after_the_other(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    kinds = []
    for people in (range(samples.PEOPLE - 2), [samples.PEOPLE - 2], [samples.PEOPLE - 1]):
        view = samples.request_deletion(settings, database, *people)
        forget_pending(context, model_id)
        with database.reading() as session:
            kinds.append(verify_certificate(session, context, view.deletion.id).kind)
    assert kinds == ["certificate", "certificate", "certificate of destruction"]


def test_people_who_leave_together_share_one_destruction(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """Although the batch limit is half of the records: nothing is computed."""
    model_id = samples.register_sample(settings, database)
    views = [samples.request_deletion(settings, database, number) for number in range(samples.PEOPLE)]
    forget_pending(context, model_id)
    with database.reading() as session:
        assert (count(session, Batch), count(session, Certificate)) == (1, samples.PEOPLE)
        verified = [verify_certificate(session, context, view.deletion.id) for view in views]
    assert {certificate.kind for certificate in verified} == {"certificate of destruction"}
    assert [len(certificate.predicate["forgotten"]["commitments"]) for certificate in verified] == [4] * samples.PEOPLE


def test_superseded_posteriors_that_are_retained_go_with_the_model(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    retaining = context.settings.model_copy(update={"superseded_retention_seconds": 3600.0})
    object.__setattr__(context, "settings", retaining)
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    view = samples.request_deletion(settings, database, *range(samples.PEOPLE))
    forget_pending(context, model_id)
    with database.reading() as session:
        erasure = verify_certificate(session, context, view.deletion.id).predicate["erasure"]
    assert sorted(file["kind"] for file in erasure["scheduled"]) == ["dataset", "posterior", "posterior"]
    assert not (settings.artifact_dir / str(model_id)).exists()


def register_mixture(settings: Settings, database: Database, components: int, rows: int) -> uuid.UUID:
    data = np.random.default_rng(1).normal(size=(rows, 2))
    mean = np.linspace(-1.0, 1.0, 2 * components).reshape(components, 2)
    registration = Registration(
        name="mixture",
        family="gaussian-mixture",
        config={"components": components, "dimensions": 2, "prior_std": 1.0},
        policy={"epsilon": 1e-6, "level": "proved", "rungs": samples.RUNGS, "seconds": None},
        posterior=save({"mean": mean, "std": np.ones((components, 2))}),
        records=save({"x": data}),
        lookups=[samples.lookup(settings, row) for row in range(rows)],
    )
    return register(database, open_artifacts(settings), registration, actor="test")


def test_a_model_left_with_too_few_records_is_destroyed_with_all_of_them(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = register_mixture(settings, database, components=3, rows=3)
    view, other = (samples.request_deletion(settings, database, number) for number in (1, 2))
    forget_pending(context, model_id)
    forget_pending(context, model_id)
    with database.reading() as session:
        verified = verify_certificate(session, context, view.deletion.id)
        assert (count(session, Record), count(session, Subject)) == (0, 0)
        assert find_view(session, other.deletion.id, caller=None).deletion.outcome == ALREADY_ERASED
    assert "left the model 2 of 3 records" in verified.predicate["statement"]
    assert "needs at least 3" in verified.predicate["statement"]
    assert len(verified.predicate["forgotten"]["commitments"]) == 1


def test_later_deletions_find_everything_erased(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failed before the model was destroyed and is retried; one names a record of it; one a person."""
    model_id = samples.register_sample(settings, database)
    failed = samples.request_deletion(settings, database, 1)
    with monkeypatch.context() as patch:
        patch.setattr(forget, "_process", _fail)
        for _ in range(2):
            forget_pending(context, model_id)
    samples.request_deletion(settings, database, *range(samples.PEOPLE))
    forget_pending(context, model_id)
    with database.writing() as session:
        retry(session, failed.deletion.id, None, "operator")
    record = NamedRecord(model_id, 3)
    named = samples.request_deletion(settings, database, records=[record])
    person = samples.request_deletion(settings, database, 1)
    assert forget_pending(context, model_id) is False
    with database.reading() as session:
        outcomes = [
            find_view(session, view.deletion.id, caller=None).deletion.outcome for view in (failed, named, person)
        ]
        statuses = {
            find_view(session, view.deletion.id, caller=None).deletion.status for view in (failed, named, person)
        }
    assert statuses == {"completed"}
    assert outcomes[0] == ALREADY_ERASED
    assert None not in outcomes


def _fail(*_arguments: Any) -> Any:
    raise forget.ml.ForgettingError("no rung reached anything")
