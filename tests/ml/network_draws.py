"""Draws of a network's posterior that pass every check, made once, and ways to spoil them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ml.inference.chains import Chains, sample
from ml.inference.hmc import HMC
from ml.posteriors.sample_set import SampleSet
from tests.ml.networks import OneLayer, learnable_rows

NETWORK = OneLayer()
_CHAINS = Chains(HMC(steps=2, tuning=0), iterations=320, burn_in=20, preconditioned=True)


@functools.cache
def rows() -> Tensor:
    return learnable_rows(NETWORK, 100, seed=1)


@functools.cache
def draws() -> SampleSet:
    """Return four chains of 300 draws each. The network's energy is convex, so that they mix in weights as well."""
    return _sample(rows())


@functools.cache
def memorising_draws() -> SampleSet:
    """Return draws of a posterior in which the first rows count five times."""
    return _sample(torch.cat([rows(), *[rows()[:4]] * 4]))


@functools.cache
def draws_of_other_rows() -> SampleSet:
    return _sample(learnable_rows(NETWORK, 100, seed=7))


def _sample(data: Tensor) -> SampleSet:
    start = NETWORK.initial(0).mean
    return sample(NETWORK, data, start, _CHAINS, torch.Generator().manual_seed(0)).sample_set


def scaled(ratio: float) -> SampleSet:
    """Return the draws, spread wider or narrower around their mean."""
    mean = draws().mean
    return replace(draws(), samples=mean + ratio * (draws().samples - mean))


def copies_of_one_point(jitter: float = 0.0) -> SampleSet:
    point = draws().samples[7]
    return replace(draws(), samples=point + jitter * (draws().samples - draws().mean))


def unmixed() -> SampleSet:
    """Return chains of half the width, each around a draw of its own."""
    offsets = 0.5 * (draws().samples - draws().mean)
    centres = draws().samples[torch.tensor([0, 300, 600, 900])].repeat_interleave(300, 0)
    return replace(draws(), samples=centres + offsets)


def repeated_points() -> SampleSet:
    """Return five draws, repeated in random order."""
    chosen = torch.randint(5, (len(draws().samples),), generator=torch.Generator().manual_seed(3))
    return replace(draws(), samples=draws().samples[chosen])


def one_chain() -> SampleSet:
    return replace(draws(), chain=torch.zeros_like(draws().chain))


WORTHLESS: dict[str, Callable[[], SampleSet]] = {
    "copies of one point": copies_of_one_point,
    "nearly copies of one point": lambda: copies_of_one_point(jitter=1e-3),
    "five points repeated": repeated_points,
    "chains that never mixed": unmixed,
    "one chain": one_chain,
}
"""Sets of which nothing may be certified, whatever the reference."""
NOT_POSTERIOR: dict[str, Callable[[], SampleSet]] = {
    "draws of another model": draws_of_other_rows,
    "twice as wide": lambda: scaled(2.0),
    "half as wide": lambda: scaled(0.5),
    "rows memorised": memorising_draws,
}
"""Sets that have a law of their own, which is not the posterior."""
