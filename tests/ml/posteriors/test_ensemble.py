from __future__ import annotations

import hashlib
from dataclasses import astuple, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from ml.errors import InvalidInput
from ml.posteriors.ensemble import Ensemble, Recipe

RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=1e-3, prior_share=0.5)
SHARD = torch.tensor([1, 0, 2, 1, 0, 2])
ENSEMBLE = Ensemble(torch.arange(6.0).double().reshape(3, 2), torch.tensor([7, 8, 9]), SHARD, RECIPE)


def test_a_file_is_read_back_byte_for_byte() -> None:
    content = ENSEMBLE.to_bytes()
    again = Ensemble.from_bytes(content)
    assert again.to_bytes() == content
    assert again.recipe == RECIPE
    assert load(content)["recipe"].tolist() == list(astuple(RECIPE))


def test_rows_and_readers_belong_together() -> None:
    assert ENSEMBLE.rows_of(1).tolist() == [0, 3]
    assert ENSEMBLE.readers_of(torch.tensor([5, 1, 2])) == [0, 2]


def test_the_digest_is_that_of_the_bytes_in_the_file() -> None:
    data = ENSEMBLE.to_bytes()
    (member,) = (load(data)["members"][1],)
    assert ENSEMBLE.digest_of(1) == hashlib.sha256(member.numpy().tobytes()).hexdigest()


def test_a_member_is_replaced_and_the_others_stay() -> None:
    theta = torch.tensor([0.5, 0.25]).double()
    after = ENSEMBLE.replaced({1: theta}, torch.tensor([3]))
    assert torch.equal(after.members[1], theta)
    assert torch.equal(after.members[[0, 2]], ENSEMBLE.members[[0, 2]])
    assert after.shard.tolist() == [1, 0, 2, 0, 2]
    assert ENSEMBLE.members[1].tolist() == [2.0, 3.0]


def test_a_member_without_rows_is_dropped_and_the_others_keep_their_seeds() -> None:
    after = ENSEMBLE.replaced({1: None}, torch.tensor([0, 3]))
    assert after.members.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert after.seed.tolist() == [7, 9]
    assert after.shard.tolist() == [0, 1, 0, 1]


def test_iterations_are_full_batches_of_every_epoch() -> None:
    assert [RECIPE.iterations(rows) for rows in (0, 1, 7, 8, 17)] == [0, 4, 4, 4, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": torch.zeros(3, 2)}, "float64"),
        ({"members": torch.full((3, 2), torch.nan).double()}, "NaN"),
        ({"seed": torch.tensor([1, 2])}, "seed"),
        ({"seed": torch.tensor([1, 2, -1])}, "seed"),
        ({"shard": SHARD.double()}, "shard"),
        ({"shard": torch.tensor([0, 1, 3])}, "from 0 to 2"),
        ({"shard": torch.tensor([0, 1])}, "from 0 to 2"),
    ],
)
def test_tensors_that_make_no_ensemble_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(ENSEMBLE, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0},
        {"epochs": 1001},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"prior_share": 0.0},
        {"prior_share": 2},
    ],
)
def test_a_recipe_that_trains_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(changes))):
        replace(RECIPE, **changes)


def test_other_files_are_refused() -> None:
    tensors = load(ENSEMBLE.to_bytes())
    fractional = {**tensors, "recipe": torch.tensor([1.5, 8, 1e-3, 1], dtype=torch.float64)}
    for content, message in (
        (b"no file", "readable"),
        (save({"mean": tensors["members"]}), "exactly members, seed, shard, recipe"),
        (save(fractional), "four"),
        (save({**tensors, "recipe": torch.ones(3).double()}), "four"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Ensemble.from_bytes(content)
