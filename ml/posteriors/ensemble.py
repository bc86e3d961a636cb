"""Ensemble: a stored posterior of K members, each trained on the rows of its own people, and the recipe that did so.

`shard` says which member has read a row. Nobody's rows are in two shards, so whoever is forgotten has left a trace in
one member alone. A member is a function of its rows, its seed and the recipe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ml.errors import InvalidInput
from vocabulary.posterior_kinds import MAX_EPOCHS, POSTERIOR_TENSORS


@dataclass(frozen=True)
class Recipe:
    """How a member is trained: passes over its rows, rows in a minibatch, first learning rate of Adam.

    `prior_share` is the power of the prior in a member's posterior. At 1/K the members share one prior as they share
    the rows (S. Scott et al., 2016).
    """

    epochs: int
    batch_size: int
    learning_rate: float
    prior_share: float

    def __post_init__(self) -> None:
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise InvalidInput(f"epochs are {self.epochs}: pass 1 to {MAX_EPOCHS}")
        if self.batch_size < 1:
            raise InvalidInput(f"batch_size is {self.batch_size}: pass at least 1")
        if not 0 < self.learning_rate <= 1:
            raise InvalidInput(f"learning_rate is {self.learning_rate}: pass a number above 0 and up to 1")
        if not 0 < self.prior_share <= 1:
            raise InvalidInput(f"prior_share is {self.prior_share}: pass a number above 0 and up to 1")

    def iterations(self, rows: int) -> int:
        """Return the minibatches of a member with so many rows."""
        return self.epochs * (rows // min(self.batch_size, rows)) if rows else 0


@dataclass(frozen=True, eq=False)
class Ensemble:
    """K members of a flat θ of length p, in float64, and the member that has read each of the n rows."""

    members: Tensor  # (K, p)
    seed: Tensor  # (K,)
    shard: Tensor  # (n,)
    recipe: Recipe

    def __post_init__(self) -> None:
        if self.members.dtype != torch.float64 or self.members.ndim != 2 or 0 in self.members.shape:
            raise InvalidInput(
                f"members are {self.members.dtype} of shape {tuple(self.members.shape)}: pass one torch.float64 row "
                "of parameters for each member"
            )
        if not bool(torch.isfinite(self.members).all()):
            raise InvalidInput("members hold NaN or infinity: train again with a lower learning rate")
        if self.seed.dtype != torch.int64 or self.seed.shape != self.members.shape[:1] or int(self.seed.min()) < 0:
            raise InvalidInput(
                f"seed is no list of {len(self.members)} numbers: pass the torch.int64 seed of each member"
            )
        if self.shard.dtype != torch.int64 or self.shard.ndim != 1:
            raise InvalidInput("shard is no list of numbers: pass the torch.int64 member of each row")
        if sorted(set(self.shard.tolist())) != list(range(len(self.members))):
            raise InvalidInput(f"shard must hold each number from 0 to {len(self.members) - 1}, and no other")

    def rows_of(self, member: int) -> Tensor:
        """Return the positions of the rows that the member has read, in order."""
        return torch.nonzero(self.shard == member).flatten()

    def readers_of(self, rows: Tensor) -> list[int]:
        """Return the members that have read any of the rows at these positions, in order."""
        return sorted(set(self.shard[rows].tolist()))

    def digest_of(self, member: int) -> str:
        """Return the SHA-256 of the member's parameters, as the file holds them."""
        return hashlib.sha256(self.members[member].cpu().contiguous().numpy().tobytes()).hexdigest()

    def replaced(self, trained: Mapping[int, Tensor | None], forgotten: Tensor) -> Ensemble:
        """Return the ensemble without the rows at positions `forgotten`, with these members trained again.

        A member of None has no rows left and is dropped; those behind it move up.
        """
        members, keep = self.members.clone(), torch.ones(len(self.shard), dtype=torch.bool, device=self.shard.device)
        for member, theta in trained.items():
            if theta is not None:
                members[member] = theta
        left = torch.tensor([k for k in range(len(members)) if trained.get(k, members[k]) is not None])
        keep[forgotten] = False
        shard = torch.searchsorted(left.to(self.shard.device), self.shard[keep])
        return replace(self, members=members[left], seed=self.seed[left], shard=shard)

    def to(self, device: torch.device) -> Ensemble:
        tensors = {name: getattr(self, name).to(device) for name in ("members", "seed", "shard")}
        return replace(self, **tensors)

    def to_bytes(self) -> bytes:
        tensors = {name: getattr(self, name).contiguous() for name in ("members", "seed", "shard")}
        return save({**tensors, "recipe": torch.tensor(astuple(self.recipe), dtype=torch.float64)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Ensemble:
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise InvalidInput(f"ensemble is not a readable safetensors file ({error}): upload it again") from error
        names = POSTERIOR_TENSORS["ensemble"]
        if set(tensors) != set(names):
            raise InvalidInput(f"ensemble holds the tensors {sorted(tensors)}: save exactly {', '.join(names)}")
        return cls(tensors["members"], tensors["seed"], tensors["shard"], _read_recipe(tensors["recipe"]))


def _read_recipe(numbers: Tensor) -> Recipe:
    if numbers.dtype != torch.float64 or numbers.shape != (4,) or not bool((numbers[:2] == numbers[:2].round()).all()):
        raise InvalidInput(
            "recipe is not four torch.float64 numbers: save whole epochs, a whole batch size, the learning rate and "
            "the share of the prior"
        )
    epochs, batch_size, learning_rate, prior_share = numbers.tolist()
    return Recipe(int(epochs), int(batch_size), learning_rate, prior_share)
