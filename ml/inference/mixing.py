"""Mixing of chains: rank-normalised split-R̂ and bulk effective sample size of series (Vehtari et al. 2021).

R̂ of true draws grows as they get fewer: with e effective draws in each half of c chains, R̂² - 1 is about F/e, where
(2c-1)F is χ² with 2c-1 degrees of freedom. So a limit is never below what one in a thousand sets of true draws exceeds.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.numerics.quantiles import chi_square_quantile

_R_HAT_FALSE_ALARMS = 1e-3
_FEWEST_DRAWS_PER_CHAIN = 100  # fewer do not raise the limit of R̂ further


@dataclass(frozen=True, eq=False)
class Mixing:
    """R̂ and effective sample size of each of k series (k,), NaN where a series is constant."""

    r_hats: Tensor
    sizes: Tensor
    chains: int
    draws: int

    @property
    def worst(self) -> int:
        return int(self.r_hats.nan_to_num(nan=math.inf).argmax())

    @property
    def least(self) -> int:
        return int(self.sizes.nan_to_num(nan=0.0).argmin())

    @property
    def r_hat(self) -> float:
        return float(self.r_hats[self.worst])

    @property
    def ess(self) -> float:
        """The smallest effective sample size, at most the number of draws."""
        return min(float(self.sizes[self.least]), float(self.draws))

    def r_hat_limit(self, limit: float) -> float:
        """Return the limit of the largest R̂ of these series, each of which has two: of its place and its spread."""
        degrees = 2 * self.chains - 1
        quantile = chi_square_quantile(_R_HAT_FALSE_ALARMS / (2 * len(self.r_hats)), degrees) / degrees
        draws_per_half = max(self.ess, _FEWEST_DRAWS_PER_CHAIN * self.chains) / (2 * self.chains)
        return max(limit, math.sqrt(1 + quantile / draws_per_half))


def measure_mixing(series: Tensor) -> Mixing:
    """Measure series of shape (chains, draws, k)."""
    chains, length, _ = series.shape
    with warnings.catch_warnings():
        # arviz warns of its next version, of few draws and of NaN; the last two show in its results.
        warnings.simplefilter("ignore")
        import arviz

        dataset = arviz.convert_to_dataset({"theta": series.cpu().numpy()})  # type: ignore[no-untyped-call]
        r_hats = torch.as_tensor(arviz.rhat(dataset)["theta"].values)  # type: ignore[no-untyped-call]
        sizes = torch.as_tensor(arviz.ess(dataset, method="bulk")["theta"].values)  # type: ignore[no-untyped-call]
    return Mixing(r_hats, sizes, chains, chains * length)


def by_chain(values: Tensor, chain: Tensor) -> Tensor:
    """Return the values of draws as (chains, length, …). Chains are truncated to the shortest one."""
    chains = [values[chain == number] for number in sorted(set(chain.tolist()))]
    length = min(len(values) for values in chains)
    return torch.stack([values[:length] for values in chains])
