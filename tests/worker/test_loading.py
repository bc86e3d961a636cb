from __future__ import annotations

import os

import numpy as np
import pytest
from safetensors.numpy import save

from ml.models.gmm import GaussianMixture
from ml.models.lenet import LeNet5
from ml.models.linear import LinearRegression
from service.settings import Settings
from service.store.database import Database
from service.store.datasets.dataset import Dataset
from service.store.errors import ArtifactDamaged
from service.store.models.registry import current_version, find_model
from tests import samples
from worker import loading
from worker.context import WorkerContext


@pytest.mark.parametrize(
    ("family", "rows", "threads"),
    [
        (LinearRegression(dimensions=9, noise_std=1.0, prior_std=1.0), 100_000, 6),
        (LinearRegression(dimensions=9, noise_std=1.0, prior_std=1.0), 10_000, 1),
        (LeNet5(), 100_000, 1),
    ],
)
def test_threads_are_used_for_large_data_sets_that_are_read_at_once(
    family: LinearRegression | LeNet5, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    dataset = Dataset({"x": np.zeros((rows, 10))}, np.arange(rows), np.zeros((rows, 16), np.uint8))
    assert loading._threads(family, dataset) == threads


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_version_is_loaded_with_its_model_posterior_and_rows(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    never_seen = save({"x": np.ones((5, 2))})
    model_id = samples.register_sample(settings, database, never_seen=never_seen)
    with database.reading() as session:
        version, model = current_version(session, model_id), find_model(session, model_id)
    digests = version.posterior_digest, version.dataset_digest
    stored = model.family, model.posterior_kind, model.config
    loaded = loading.load_model(context.artifacts, model_id, *stored, *digests, model.never_seen_digest)
    assert loaded.model == GaussianMixture(**model.config)
    assert loaded.posterior.to_bytes() == context.artifacts.get(model_id, version.posterior_digest)
    assert np.array_equal(loaded.rows.cpu().numpy(), samples.points())
    assert loaded.dataset.records.tolist() == list(range(len(samples.points())))
    assert loaded.never_seen is not None
    assert loaded.never_seen.shape == (5, 2)
    assert loading.load_model(context.artifacts, model_id, *stored, *digests).never_seen is None
    context.artifacts.path(model_id, version.posterior_digest).write_bytes(b"other bytes")
    with pytest.raises(ArtifactDamaged):
        loading.load_model(context.artifacts, model_id, *stored, *digests)
