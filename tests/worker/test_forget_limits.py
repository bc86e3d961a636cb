"""Everything that registration accepts can be forgotten, at the limits of its numbers too, by a real batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save
from sqlalchemy import select

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.errors import InvalidRegistration
from service.store.models.registry import Registration, register
from service.store.tables import Batch
from tests import samples
from vocabulary.families import FAMILIES
from vocabulary.posterior_kinds import PosteriorKind
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
LARGEST, LARGEST_SAMPLED, LARGEST_IN_NETWORK = 1e12, 1e6, 1e9
CONFIGS: dict[str, dict[str, Any]] = {
    "gaussian-mixture": {"components": 2, "dimensions": 2},
    "linear-regression": {"dimensions": 2, "noise_std": 1.0},
    "logistic-regression": {"dimensions": 2},
    "softmax-regression": {"dimensions": 2, "classes": 3, "draws": 4},
    "mlp": {"dimensions": 2, "hidden": 3, "classes": 3},
}
POLICY = {"epsilon": 1e-3, "level": "estimated", "rungs": samples.RUNGS, "seconds": None}
Rows = NDArray[np.float64]


def rows(family: str, scale: float, count: int = 12) -> Iterator[tuple[str, Rows]]:
    """Yield rows whose features are this large: in all directions, all in one, in one row only, and zero."""
    generator = np.random.default_rng(3)
    features = np.clip(generator.normal(size=(count, 2)), -1, 1)
    features[0] = 1.0
    alone = np.zeros((count, 2))
    alone[5] = 1.0
    for name, shape in (("spread", features), ("equal", np.ones((count, 2))), ("alone", alone), ("zero", 0 * alone)):
        yield name, _with_target(family, scale * shape, scale)


def _with_target(family: str, features: Rows, scale: float) -> Rows:
    if family == "gaussian-mixture":
        return features
    if family == "linear-regression":
        return np.column_stack([features, np.full(len(features), -scale)])
    return np.column_stack([features, np.arange(len(features)) % (2 if family == "logistic-regression" else 3)])


def posteriors(family: str, largest: float, prior_std: float) -> Iterator[tuple[str, bytes]]:
    shape = FAMILIES[family].config(**CONFIGS[family], prior_std=prior_std).layout.shape
    assert shape is not None
    values = {"wide": (0.0, largest), "narrow": (largest, 1 / largest), "plain": (-largest, 1.0)}
    for name, (mean, std) in values.items():
        yield name, save({"mean": np.full(shape, mean), "std": np.full(shape, std)})


def sample_sets(family: str, largest: float) -> Iterator[tuple[str, bytes]]:
    count = FAMILIES[family].config(**CONFIGS[family], prior_std=1.0).layout.parameter_count
    assert count is not None
    noise = np.clip(np.random.default_rng(4).normal(size=(40, count)), -1, 1)
    for name, draws, chains in (("large", largest * noise, 4), ("equal", 0 * noise, 4), ("one chain", noise, 1)):
        yield name, save({"samples": draws, "chain": np.arange(40) % chains})


def register_model(
    settings: Settings,
    database: Database,
    family: str,
    records: Rows,
    posterior: bytes,
    prior_std: float = 1.0,
    kind: PosteriorKind = "variational",
) -> uuid.UUID:
    config = FAMILIES[family].config(**CONFIGS[family], prior_std=prior_std)
    registration = Registration(
        name=family,
        family=family,
        config=config.model_dump(),
        policy=dict(POLICY),
        posterior=posterior,
        posterior_kind=kind,
        records=save({"x": records}),
        lookups=[samples.lookup(settings, row) for row in range(len(records))],
        layout=config.layout,
    )
    return register(database, open_artifacts(settings), registration, actor="test")


def forget_somebody(settings: Settings, database: Database, context: WorkerContext, model_id: uuid.UUID) -> str | None:
    """Forget one person. Return why that failed, or None."""
    samples.request_deletion(settings, database, 5, model_ids=[model_id])
    forget_pending(context, model_id)
    with database.reading() as session:
        batch = session.scalars(select(Batch).where(Batch.model_id == model_id)).one()
    return None if batch.status == "published" else batch.failure


def check_variational(
    settings: Settings,
    database: Database,
    context: WorkerContext,
    family: str,
    largest: float,
    prior_std: float,
    only: tuple[str, ...] = (),
) -> None:
    failures = {}
    count = 80 if FAMILIES[family].is_network else 12
    for rows_name, records in rows(family, largest, count):
        for name, posterior in posteriors(family, largest, prior_std):
            if only and not {rows_name, name} <= set(only):
                continue
            model_id = register_model(settings, database, family, records, posterior, prior_std)
            failures[rows_name, name] = forget_somebody(settings, database, context, model_id)
    assert {case: reason for case, reason in failures.items() if reason} == {}


@pytest.mark.parametrize("family", ["gaussian-mixture", "linear-regression", "logistic-regression"])
def test_anybody_is_forgotten_at_the_limits(
    settings: Settings, database: Database, context: WorkerContext, family: str
) -> None:
    check_variational(settings, database, context, family, LARGEST, 1e6, only=("equal", "alone", "narrow"))


@pytest.mark.soak
@pytest.mark.parametrize("prior_std", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("family", ["gaussian-mixture", "linear-regression", "logistic-regression"])
def test_anybody_is_forgotten_at_all_limits(
    settings: Settings, database: Database, context: WorkerContext, family: str, prior_std: float
) -> None:
    check_variational(settings, database, context, family, LARGEST, prior_std)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("family", "largest"), [("softmax-regression", LARGEST), ("mlp", LARGEST_IN_NETWORK)], ids=["softmax", "mlp"]
)
def test_anybody_is_forgotten_at_the_limits_of_slow_families(
    settings: Settings, database: Database, context: WorkerContext, family: str, largest: float
) -> None:
    check_variational(settings, database, context, family, largest, 1.0, only=("spread", "alone", "narrow"))


@pytest.mark.soak
@pytest.mark.parametrize("family", ["gaussian-mixture", "linear-regression", "logistic-regression"])
def test_anybody_is_forgotten_from_samples_at_the_limits(
    settings: Settings, database: Database, context: WorkerContext, family: str
) -> None:
    failures = {}
    kinds = dict(rows(family, LARGEST_SAMPLED))
    for rows_name, records in ((name, kinds[name]) for name in ("spread", "equal")):
        for name, posterior in sample_sets(family, LARGEST_SAMPLED):
            model_id = register_model(settings, database, family, records, posterior, kind="samples")
            failures[rows_name, name] = forget_somebody(settings, database, context, model_id)
    assert {case: reason for case, reason in failures.items() if reason} == {}


@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_just_outside_is_refused(settings: Settings, database: Database, family: str) -> None:
    largest = LARGEST_IN_NETWORK if FAMILIES[family].is_network else LARGEST
    within = dict(rows(family, 1.0, count=80))["spread"]
    beyond = within.copy()
    beyond[70, 0] = 1.01 * largest
    _, posterior = next(posteriors(family, 1.0, 1.0))
    with pytest.raises(InvalidRegistration, match=r"row 70 of 'x' holds a number beyond") as refused:
        register_model(settings, database, family, beyond, posterior)
    assert refused.value.field == "records"
    for _, unsafe in posteriors(family, 1.01 * largest, 1.0):
        with pytest.raises(InvalidRegistration, match=r"row 0 of '(mean|std)' holds"):
            register_model(settings, database, family, within, unsafe)
