from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks.service import drain_models
from benchmarks.service.database import scratch_settings
from benchmarks.service.drain_models import populate, train
from service.store import migrate
from service.store.database import Database
from service.store.tables import DeletionTarget
from worker.context import WorkerContext


@pytest.fixture
def context(tmp_path: Path) -> Iterator[WorkerContext]:
    settings = scratch_settings(tmp_path, f"sqlite:///{tmp_path / 'bench.db'}")
    database = Database(settings.database)
    migrate.upgrade(database)
    database.close()
    context = WorkerContext.open(settings)
    yield context
    context.doorbell.close()
    context.database.close()


def test_each_person_is_deleted_once(context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_models, "CONFIG", {**drain_models.CONFIG, "dimensions": 2, "classes": 2, "draws": 2})
    population = populate(context, "bench", train(40))
    population.request_deletions(context, 10)
    population.request_deletions(context, 20)
    with context.database.reading() as session:
        targets = select(func.count()).where(DeletionTarget.model_id == population.model_id)
        assert session.scalar(targets) == 30
    with pytest.raises(ValueError, match="more rows"):
        population.request_deletions(context, 11)
