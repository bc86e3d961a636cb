"""A worker killed at every boundary of a batch: nothing is lost or done twice, and no forgotten row is left.

The seed determines how many deletions share the batch, their people, whether others wait or arrive meanwhile, and
whether the next worker is killed as well.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import timedelta
from itertools import count

import pytest
from sqlalchemy import update

from service.store.tables import DeletionTarget, now
from tests.faults.bench import Bench, Trial
from tests.faults.invariants import check_log

ON_EACH_STORAGE = pytest.mark.parametrize(
    ("database_url", "storage"), [("sqlite", "folder"), ("postgresql", "s3")], indirect=True
)
TRIALS_PER_BOUNDARY = 2
SEED = 6
MIN_BOUNDARIES = {"commit": 8, "load_claimed": 1, "schedule_erasure": 1}
"""Of one batch: claim, two rows and two checks of files, progress, publication, files destroyed."""
POINTS = {
    "half of the posterior's draft": ("half of write", 0),
    "posterior": ("after replace", 0),
    "half of the data set's draft": ("half of write", 1),
    "data set": ("after replace", 1),
    "inside publication": ("after schedule_erasure", 0),
    "during destruction": ("after unlink", -1),
}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_forgotten_row_is_left_after_kills(bench: Bench) -> None:
    """The points at which files are written or removed, once each; the others are in make soak."""
    trials = count(1)
    names = _boundaries(bench, next(trials))
    for point, (name, occurrence) in POINTS.items():
        trial = Trial(bench, next(trials))
        trial.request(trial.people[0])
        worker_exit = trial.kill([number for number, reached in enumerate(names) if reached == name][occurrence])
        assert worker_exit.killed
        trial.request(trial.people[1])  # the killed worker's data set still has their rows
        trial.finish()
        trial.check(f"death at the point: {point}")


@pytest.mark.soak
@pytest.mark.timeout(600)
@ON_EACH_STORAGE
def test_a_worker_killed_at_any_boundary_loses_nothing(bench: Bench) -> None:
    trials = count(1)
    names = _boundaries(bench, next(trials))
    for boundary, name in enumerate(names):
        for number in range(TRIALS_PER_BOUNDARY):
            seed = SEED * 1_000_000 + boundary * 1_000 + number
            circumstances = f"death {name} (boundary {boundary} of {len(names)}), seed {seed}"
            _try_deletions(bench, Trial(bench, next(trials)), boundary, circumstances, seed)
    check_log(bench.settings, bench.database)
    print(f"{len(names) * TRIALS_PER_BOUNDARY} kills at {len(names)} boundaries")  # noqa: T201


@pytest.mark.soak
@pytest.mark.timeout(300)
@ON_EACH_STORAGE
def test_a_worker_killed_while_it_destroys_a_model_loses_nothing(bench: Bench) -> None:
    trials = count(1)
    first = Trial(bench, next(trials))
    first.request(*first.people)
    names = first.run()
    first.check("no fault")
    for boundary, name in enumerate(names):
        trial = Trial(bench, next(trials))
        trial.request(*trial.people)
        assert trial.kill(boundary).killed
        trial.finish()
        trial.check(f"death {name} (boundary {boundary} of {len(names)})")
    check_log(bench.settings, bench.database)
    print(f"{len(names)} kills during destructions")  # noqa: T201


def _boundaries(bench: Bench, number: int) -> Sequence[str]:
    """Return the boundaries of the shortest batch; every batch has them."""
    trial = Trial(bench, number)
    trial.request(trial.people[0])
    names = trial.run()
    for name, minimum in MIN_BOUNDARIES.items():
        for side in ("before", "after"):
            assert names.count(f"{side} {name}") >= minimum, names
    trial.check("no fault")
    return names


def _try_deletions(bench: Bench, trial: Trial, boundary: int, circumstances: str, seed: int) -> None:
    rng = random.Random(seed)
    remaining = rng.sample(trial.people, 8)

    def request(size: int) -> uuid.UUID:
        return trial.request(*(remaining.pop() for _ in range(size)))

    for _ in range(rng.randint(1, 4)):
        request(1)
    if rng.random() < 0.5:
        _postpone(bench, request(rng.randint(1, 2)))
    worker_exit = trial.kill(boundary)
    assert worker_exit.killed, f"the worker exited with {worker_exit.exit_code}, expected: {circumstances}"
    if rng.random() < 0.5:
        request(1)
    if rng.random() < 0.25:
        trial.kill(rng.randrange(boundary + 1))
    trial.finish()
    trial.check(circumstances)


def _postpone(bench: Bench, deletion_id: uuid.UUID) -> None:
    """Postpone a deletion as after a failure: it is not in this batch, but in the next."""
    with bench.database.writing() as session:
        targets = update(DeletionTarget).where(DeletionTarget.deletion_id == deletion_id)
        session.execute(targets.values(not_before=now() + timedelta(hours=1)))
