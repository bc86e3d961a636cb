"""Split of the rows into shards, by the people who own them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import torch
from torch import Tensor

from ml.errors import InvalidInput


def assign_shards(owners: Sequence[str], shards: int, key: bytes) -> Tensor:
    """Return the shard of each row: a keyed hash of its owner.

    Where somebody's rows go depends on nobody else, so the others' shards are what they would be without this person.
    """
    numbers = {owner: int.from_bytes(hmac.digest(key, owner.encode(), hashlib.sha256)[:8]) for owner in set(owners)}
    shard = torch.tensor([numbers[owner] % shards for owner in owners])
    empty = sorted(set(range(shards)) - set(shard.tolist()))
    if empty:
        raise InvalidInput(f"{len(empty)} of {shards} shards got nobody's rows: ask for fewer shards")
    return shard
