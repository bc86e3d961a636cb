from __future__ import annotations

import pytest
import torch

from ml.errors import InvalidInput
from ml.inference.shards import assign_shards

OWNERS = [f"person-{row // 3}" for row in range(3000)]


def test_nobody_is_in_two_shards_and_the_shards_are_of_a_size() -> None:
    shard = assign_shards(OWNERS, 4, b"key")
    assert (shard.reshape(-1, 3) == shard[::3, None]).all()
    assert (torch.bincount(shard) - 750).abs().max() < 5 * 3 * (1000 * 3 / 16) ** 0.5


def test_the_shard_of_a_person_depends_on_nobody_else() -> None:
    everybody, without = assign_shards(OWNERS, 4, b"key"), assign_shards(OWNERS[30:], 4, b"key")
    assert torch.equal(everybody[30:], without)
    assert not torch.equal(everybody, assign_shards(OWNERS, 4, b"another key"))


def test_more_shards_than_people_are_refused() -> None:
    with pytest.raises(InvalidInput, match="fewer shards"):
        assign_shards(["a", "b"], 3, b"key")
