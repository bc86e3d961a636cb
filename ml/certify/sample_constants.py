"""Numbers behind the certificate of a sample set."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.certify.gaussian_theorem import GaussianTheorem
from vocabulary.posterior_kinds import Reading


@dataclass(frozen=True)
class SampleConstants:
    """Numbers behind the estimate; NaN if they were not given or could not be computed.

    s is log p(S' | θ) of all rows forgotten since the chains drew: the logarithm of the weights, with the other sign.
    """

    n_before: int
    draws: int
    reading: Reading
    estimate: float
    chi_square: float
    relative_ess: float
    k_hat: float
    effective_draws: float
    undetectable: float
    unevenness: float
    rounding: float
    chain_r_hat: float
    chain_ess: float
    chain_width: float
    gaussian: GaussianTheorem | None
    s_r_hat: float = math.nan
    s_ess: float = math.nan
    panel_r_hat: float = math.nan
    panel_ess: float = math.nan
    independent_draws: float = math.nan
    effective_parameters: float = math.nan
