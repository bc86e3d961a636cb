from __future__ import annotations

import numpy as np
from safetensors.numpy import save

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.models.registry import Registration, current_version, register
from tests import samples
from vocabulary.layouts import Layout
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.readiness import check_current


def test_the_readiness_of_the_current_version_is_recorded_once(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    assert check_current(context, model_id) is True
    assert check_current(context, model_id) is False
    with database.reading() as session:
        readiness = current_version(session, model_id).readiness
    assert readiness is not None
    assert (readiness["ready"], readiness["levels"], readiness["advice"]) == (True, ["proved"], [])


def test_a_published_version_is_checked_again(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    check_current(context, model_id)
    samples.request_deletion(settings, database, 3)
    forget_pending(context, model_id)
    assert check_current(context, model_id) is True


def test_a_network_is_checked_as_a_network(settings: Settings, database: Database, context: WorkerContext) -> None:
    rows = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    rows[:, -1] = rows[:, 0] > 0
    registration = Registration(
        name="network",
        family="mlp",
        config={"dimensions": 3, "hidden": 4, "classes": 2, "prior_std": 0.5},
        policy={"epsilon": 0.1, "level": "estimated", "rungs": samples.RUNGS, "seconds": None},
        posterior=save({"mean": np.zeros(26), "std": np.full(26, 0.1)}),
        records=save({"x": rows}),
        lookups=[samples.lookup(settings, row) for row in range(64)],
        layout=Layout((26,), 4, row_types=("float32",)),
    )
    model_id = register(database, open_artifacts(settings), registration, actor="test")
    assert check_current(context, model_id) is True
    with database.reading() as session:
        readiness = current_version(session, model_id).readiness
    assert readiness is not None
    assert (readiness["levels"], readiness["distance"]) == (["estimated"], None)
    assert readiness["numbers"]["residual_of_a_row"] > 0


def test_a_version_that_cannot_be_read_is_recorded_once(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        path = context.artifacts.path(model_id, current_version(session, model_id).posterior_digest)
    path.write_bytes(b"not what it was")
    assert check_current(context, model_id) is True
    with database.reading() as session:
        readiness = current_version(session, model_id).readiness
    assert readiness is not None
    assert readiness["ready"] is False
    assert "unexpected ArtifactDamaged" in readiness["advice"][0]
    assert check_current(context, model_id) is False
