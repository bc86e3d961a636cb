"""Fresh starts of an energy with several minima: whether training anew may end below the processed posterior.

Each start is swept towards its minimum on the retained rows, or on a sample of them, and so is the processed posterior.
The lowest of those that ended below it is then swept on all rows, and must be below it there too. A start may end in a
minimum that a few sweeps do not reach, so no start below is no proof that there is none.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ml.certify.certificate import Certificate, FreshStarts
from ml.models.family import Expansion, Family
from ml.posteriors.mean_field import MeanFieldGaussian

_STARTS = 4
_MAX_ROWS = 1_000
_ROWS_SEED = 0
_MAX_SWEEPS = 25
_SWEEPS_ON_ALL_ROWS = 5
_AT_REST = 1e-2  # widths that a sweep moves the posterior near a minimum
_LOWER = 1e-3  # nats by which one minimum is below another; less is sweeping or rounding


def try_fresh_starts(family: Family, expansion: Expansion, data: Tensor) -> FreshStarts:
    """Compare the posterior of `expansion`, over `data`, with fresh starts of an energy that is not convex."""
    rows = _sample(data)
    ends = [_descend(family, family.initial(rows, seed), rows) for seed in range(1, _STARTS + 1)]
    processed = _descend(family, expansion.posterior, rows)
    ceiling = family.expand(processed, rows).energy
    falls = [ceiling - family.expand(end, rows).energy for end in ends]
    lower = sum(fall > _LOWER for fall in falls)
    lowest = max(falls)
    if lower > 0 and len(rows) < len(data):
        lowest = expansion.energy - _energy_on_all_rows(family, ends[falls.index(lowest)], data)
    if not lowest > _LOWER:
        return FreshStarts(_STARTS, 0, 0.0, len(rows))
    return FreshStarts(_STARTS, lower, lowest, len(rows))


def state_fresh_starts(certificate: Certificate, family: Family, expansion: Expansion, data: Tensor) -> Certificate:
    """Return the certificate with what fresh starts reached, where the energy may have several minima."""
    if family.convex:
        return certificate
    starts = try_fresh_starts(family, expansion, data)
    about_the_basin, *others = certificate.not_proved
    sentences = (about_the_basin, describe_fresh_starts(starts), *others)
    return replace(certificate, fresh_starts=starts, not_proved=sentences)


def describe_fresh_starts(starts: FreshStarts) -> str:
    """Return what the fresh starts reached in a sentence."""
    if starts.lower == 0:
        return f"None of {starts.tried} fresh starts found a lower minimum; that is no proof that there is none."
    return (
        f"{starts.lower} of {starts.tried} fresh starts ended in a lower minimum, up to {starts.lowest:.2g} nats "
        "below: training anew may end there."
    )


def _sample(data: Tensor) -> Tensor:
    if len(data) <= _MAX_ROWS:
        return data
    generator = torch.Generator().manual_seed(_ROWS_SEED)
    return data[torch.randperm(len(data), generator=generator)[:_MAX_ROWS].to(data.device)]


def _descend(family: Family, posterior: MeanFieldGaussian, rows: Tensor) -> MeanFieldGaussian:
    """Sweep until a sweep moves no parameter by more than a hundredth of its width."""
    for _ in range(_MAX_SWEEPS):
        swept = family.sweep(posterior, rows)
        moved = float(((swept.mean - posterior.mean).abs() / swept.std).max())
        posterior = swept
        if moved <= _AT_REST:
            break
    return posterior


def _energy_on_all_rows(family: Family, posterior: MeanFieldGaussian, data: Tensor) -> float:
    for _ in range(_SWEEPS_ON_ALL_ROWS):
        posterior = family.sweep(posterior, data)
    return family.expand(posterior, data).energy
