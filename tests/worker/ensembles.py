"""A registered ensemble: three members of a tiny network, 90 rows of 30 people."""

from __future__ import annotations

import uuid

from safetensors.torch import save

from ml.posteriors.ensemble import Ensemble
from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.models.registry import Registration, current_version, register
from tests import samples
from tests.ml.ensembles import small_ensemble
from vocabulary.families import FAMILIES
from worker.context import WorkerContext

CONFIG = {"dimensions": 3, "hidden": 4, "classes": 3, "prior_std": 0.5}
ROWS_EACH = 3


def register_ensemble(settings: Settings, database: Database) -> uuid.UUID:
    ensemble, data = small_ensemble()
    registration = Registration(
        name="ensemble",
        family="mlp",
        config=dict(CONFIG),
        policy={"epsilon": 1e-6, "level": "retrained", "rungs": ["retrain"], "seconds": None},
        posterior=ensemble.to_bytes(),
        posterior_kind="ensemble",
        records=save({"x": data}),
        lookups=[samples.lookup(settings, row // ROWS_EACH) for row in range(len(data))],
        layout=FAMILIES["mlp"].config(**CONFIG).layout,
    )
    return register(database, open_artifacts(settings), registration, actor="test")


def one_person_of_each_member() -> list[int]:
    shard = small_ensemble()[0].shard[::ROWS_EACH].tolist()
    return [shard.index(member) for member in range(3)]


def current_ensemble(context: WorkerContext, model_id: uuid.UUID) -> Ensemble:
    with context.database.reading() as session:
        digest = current_version(session, model_id).posterior_digest
    return Ensemble.from_bytes(context.artifacts.get(model_id, digest))
