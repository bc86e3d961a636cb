from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from safetensors.numpy import load, save

from service.store.datasets.draws import draw_file, largest_count, pick_draws
from service.store.errors import NotDrawable

WEIGHTS = np.array([0.1, 0.2, 0.7])
LOG_WEIGHTS = np.log(WEIGHTS) + 300.0  # weights are known up to a factor
TRIALS = 4000


def sample_set(log_weights: np.ndarray | None = None, draws: int = 40) -> bytes:
    tensors = {"samples": np.arange(2.0 * draws).reshape(draws, 2), "chain": np.arange(draws) % 2}
    if log_weights is not None:
        tensors |= {"log_weights": log_weights, "log_weights_error": np.zeros(1)}
    return save(tensors)


def picked(content: bytes, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    return load(b"".join(map(bytes, draw_file(content, count, seed))))


def test_one_draw_is_picked_by_its_weight() -> None:
    picks = [int(pick_draws(LOG_WEIGHTS, 1, seed)[0]) for seed in range(TRIALS)]
    error = 4 * np.sqrt(WEIGHTS * (1 - WEIGHTS) / TRIALS)
    assert np.all(np.abs(np.bincount(picks, minlength=3) / TRIALS - WEIGHTS) < error)


def test_two_draws_have_the_law_of_picking_one_after_the_other() -> None:
    pairs = [tuple(pick_draws(LOG_WEIGHTS, 2, seed)) for seed in range(TRIALS)]
    for first, second in itertools.permutations(range(3), 2):
        expected = WEIGHTS[first] * WEIGHTS[second] / (1 - WEIGHTS[first])
        share = pairs.count((first, second)) / TRIALS
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / TRIALS), (first, second)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_picked_draws_cost_at_most_count_squared_times_the_bound_of_one(count: int) -> None:
    """Enumerate a posterior on two points: of 5 stored draws, `count` are picked by weight."""
    before, after, stored = np.array([0.5, 0.5]), np.array([0.2, 0.8]), 5
    weight = after / before
    chi_square = float((after * weight).sum()) - 1
    law = dict.fromkeys(itertools.product(range(2), repeat=count), 0.0)
    for points in itertools.product(range(2), repeat=stored):
        weights, chance = weight[list(points)], float(before[list(points)].prod())
        for order in itertools.permutations(range(stored), count):
            left = weights.sum() - np.concatenate([[0.0], weights[list(order)].cumsum()[:-1]])
            law[tuple(points[draw] for draw in order)] += chance * float((weights[list(order)] / left).prod())
    reference = {points: float(after[list(points)].prod()) for points in law}
    divergence = sum(chance * math.log(chance / law[points]) for points, chance in reference.items())
    assert 0 < divergence <= count**2 * math.log1p(chi_square / stored)


def test_a_file_has_the_picked_draws_alone_each_once() -> None:
    content = sample_set()
    tensors = picked(content, 4, seed=3)
    assert set(tensors) == {"samples"}
    stored = load(content)["samples"].tolist()
    positions = [stored.index(row) for row in tensors["samples"].tolist()]
    assert len(set(positions)) == 4
    assert np.array_equal(picked(content, 4, seed=3)["samples"], tensors["samples"])
    assert not np.array_equal(picked(content, 4, seed=4)["samples"], tensors["samples"])


def test_the_weights_of_the_file_decide() -> None:
    heavy = np.full(40, -200.0)
    heavy[7] = 0.0
    content = sample_set(heavy)
    assert {picked(content, 1, seed)["samples"].tolist()[0][0] for seed in range(20)} == {14.0}


def test_a_tenth_of_the_effective_draws_is_the_limit() -> None:
    assert largest_count(np.zeros(400)) == 40
    assert largest_count(np.concatenate([np.zeros(200), np.full(200, -900.0)])) == 20
    assert largest_count(np.array([0.0, -900.0])) == 1
    with pytest.raises(NotDrawable, match="5 draws are more than this version can spare, 4"):
        draw_file(sample_set(), 5, 0)
