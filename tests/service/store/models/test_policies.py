from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, fail_batch
from service.store.database import Database
from service.store.deletions.interventions import cancel, retry
from service.store.models.policies import strictest_policy
from service.store.models.registry import change_policy
from service.store.tables import DeletionTarget
from tests import samples

FIRST = {"epsilon": 1e-6, "level": "proved", "rungs": samples.RUNGS, "seconds": None, "reference": "posterior"}
LOOSE = {**FIRST, "epsilon": 1.0, "level": "estimated", "rungs": ["influence"], "seconds": 9.0}
STORED = {**LOOSE, "reference": "stored draws"}


def policy(**changes: Any) -> dict[str, Any]:
    return {**FIRST, **changes}


@pytest.mark.parametrize(
    ("current", "frozen", "expected"),
    [
        (FIRST, [], FIRST),
        (LOOSE, [FIRST], {**LOOSE, "epsilon": 1e-6, "level": "proved"}),
        (FIRST, [LOOSE], FIRST),
        (LOOSE, [policy(epsilon=0.5), policy(level="estimated")], {**LOOSE, "epsilon": 1e-6, "level": "proved"}),
        (
            LOOSE,
            [policy(level="retrained")],
            {**LOOSE, "epsilon": 1e-6, "level": "retrained", "rungs": ["influence", "retrain"]},
        ),
        (STORED, [STORED], STORED),
        (STORED, [LOOSE], LOOSE),
        (LOOSE, [STORED], LOOSE),
    ],
)
def test_the_strictest_promise_applies_with_the_current_means(
    current: dict[str, Any], frozen: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    before = dict(current)
    assert strictest_policy(current, frozen) == expected
    assert current == before


def test_a_policy_from_before_references_existed_asks_for_the_posterior() -> None:
    earlier = {name: value for name, value in LOOSE.items() if name != "reference"}
    assert strictest_policy(earlier, []) == LOOSE
    assert strictest_policy(STORED, [earlier]) == LOOSE


def claimed(database: Database, model_id: uuid.UUID) -> Claim:
    with database.writing() as session:
        claim = claim_batch(session, model_id, "worker", ClaimTerms(30, 3))
    assert claim is not None
    return claim


def change(database: Database, model_id: uuid.UUID, policy: dict[str, Any]) -> None:
    with database.writing() as session:
        change_policy(session, model_id, policy, "test")


def test_a_request_keeps_its_promised_policy(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    change(database, model_id, policy(epsilon=1e-3))
    samples.request_deletion(settings, database, 2)
    change(database, model_id, LOOSE)
    with database.reading() as session:
        epsilons = {target.policy and target.policy["epsilon"] for target in session.scalars(select(DeletionTarget))}
    assert epsilons == {1e-6, 1e-3}
    assert claimed(database, model_id).policy == {**LOOSE, "epsilon": 1e-6, "level": "proved"}


def test_the_old_policy_applies_only_to_earlier_requests(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    change(database, model_id, LOOSE)
    samples.request_deletion(settings, database, 1)
    assert claimed(database, model_id).policy == LOOSE


def test_a_stricter_policy_applies_to_waiting_requests(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    change(database, model_id, policy(epsilon=1e-9, seconds=60.0))
    assert claimed(database, model_id).policy == policy(epsilon=1e-9, seconds=60.0)


def test_a_failed_request_keeps_its_promise_and_gets_the_new_means(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database, rungs=["influence"])
    failed = samples.request_deletion(settings, database, 1).deletion.id
    with database.writing() as session:
        batch = claim_batch(session, model_id, "worker", ClaimTerms(30, 3))
        assert batch is not None
        fail_batch(session, batch.batch_id, "bound above policy", permanent=True, max_attempts=3)
    change(database, model_id, policy(epsilon=1.0))
    with database.writing() as session:
        retry(session, failed, None, "test")
    assert claimed(database, model_id).policy == FIRST


def test_ended_requests_are_left_unchanged(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    cancelled = samples.request_deletion(settings, database, 1).deletion.id
    with database.writing() as session:
        cancel(session, cancelled, None, "test")
    change(database, model_id, LOOSE)
    with database.reading() as session:
        assert session.scalars(select(DeletionTarget)).one().policy is None
