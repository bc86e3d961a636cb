"""Mixing in function space: R̂ and effective sample size of log-likelihoods log p(z_i | θ_t) of a panel of rows.

Exchanging hidden units changes the weights of a network, not its predictions. So chains agree in what they predict long
before they agree in weights, if they ever do. Weights that divide the forgotten rows out depend on predictions alone.

    r_hat                  of the worst row of the panel; at most 1.05, or what true draws exceed by chance
    typical_r_hat          of the row in the middle: chains that never met disagree about most rows
    ess                    of the worst row
    effective_parameters   n times the mean variance of log p(z_i | θ): what the draws vary, in units of parameters that
                           the rows inform (the penalty of WAIC: S. Watanabe, 2010). Copies of one point have none.
    distinct_draws         draws that differ in some log-likelihood: at most so many are independent

The panel is chosen by a fixed seed, and computed in the precision of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.inference.mixing import by_chain, measure_mixing
from ml.models.likelihood import Likelihood
from ml.posteriors.sample_set import SampleSet

PANEL_ROWS = 50
MAX_R_HAT = 1.05
MIN_ESS = 100.0
MIN_EFFECTIVE_PARAMETERS = 1.0
MAX_TYPICAL_R_HAT = 1.1
_PANEL_SEED = 0
_MIN_CHAINS = 2


@dataclass(frozen=True)
class FunctionMixing:
    """Mixing of the log-likelihoods of some rows, in all chains."""

    rows: int
    chains: int
    r_hat: float
    r_hat_limit: float
    typical_r_hat: float
    ess: float
    effective_parameters: float
    distinct_draws: int

    def problems(self) -> Iterator[str]:
        """Say which limits of draws from a posterior are missed, and what to change."""
        if not self.r_hat <= self.r_hat_limit:
            yield (
                f"the chains disagree about a row of the panel (R-hat of its log-likelihood {self.r_hat:.3f}, over "
                f"{self.r_hat_limit:.3g}): raise burn_in and iterations, or run more chains"
            )
        if not self.ess >= MIN_ESS:
            yield (
                f"the log-likelihoods of a row of the panel are worth only {self.ess:.0f} independent draws "
                f"({MIN_ESS:.0f} needed): run more chains, or raise iterations together with thinning"
            )
        yield from self.degeneracies()

    def degeneracies(self) -> Iterator[str]:
        """Say why these cannot pass for draws of any law that weights could correct."""
        if self.chains < _MIN_CHAINS:
            yield "there is one chain, and nothing to compare it with: run two or more from different starts"
        if not self.effective_parameters >= MIN_EFFECTIVE_PARAMETERS:
            yield (
                f"the draws hardly differ: their log-likelihoods vary as if the rows informed "
                f"{self.effective_parameters:.2g} parameters: keep draws of a sampler, not copies of one point"
            )
        if not self.typical_r_hat <= MAX_TYPICAL_R_HAT:
            yield (
                f"the chains never met: R-hat is over {self.typical_r_hat:.3g} for half of the panel (limit "
                f"{MAX_TYPICAL_R_HAT}): run them longer, with longer steps"
            )


def measure_functions(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> FunctionMixing:
    """Measure the mixing of the log-likelihoods of a random panel of the rows."""
    panel = torch.randperm(len(data), generator=torch.Generator().manual_seed(_PANEL_SEED))[:PANEL_ROWS]
    values = row_log_likelihoods(likelihood, sample_set.samples, data[panel.to(data.device)])
    mixing = measure_mixing(by_chain(values, sample_set.chain))
    return FunctionMixing(
        rows=len(panel),
        chains=mixing.chains,
        r_hat=mixing.r_hat,
        r_hat_limit=mixing.r_hat_limit(MAX_R_HAT),
        typical_r_hat=float(mixing.r_hats.median()),
        ess=mixing.ess,
        effective_parameters=len(data) * float(values.var(0).mean()),
        distinct_draws=len(set(map(tuple, values.tolist()))),
    )


def row_log_likelihoods(likelihood: Likelihood, samples: Tensor, rows: Tensor) -> Tensor:
    """Return log p(z_i | θ_t) of each draw and row, (T, rows) in float64; computed in the precision of the rows."""
    with torch.no_grad():
        values = [likelihood.log_likelihood(theta.to(rows.dtype), rows) for theta in samples]
    return torch.stack(values).double()
