"""Whether a sample set may be trusted: do the chains agree, how much do they say, are they as wide as the posterior.

    r_hat   rank-normalised split-R̂ of the worst parameter: at most 1.01     (Vehtari et al. 2021)
    ess     bulk effective sample size of the worst one: at least 100 a chain (the same)
    width   √( E (θ - θ̄)·∇U(θ) / p ): 0.9 to 1.1

Integrating by parts, E (θ_j - c) ∂_jU(θ) = 1 for every parameter of any posterior e^(-U) and every c (Stein's identity;
the virial theorem). Draws of a chain that is too wide by a factor, which R̂ and ESS cannot see, give that factor
instead. At 1.1 a Gaussian is 0.01 nat a parameter from the truth.

The width is of all parameters. The worst one is sought, in models of more than 500, among 500 that a fixed seed
chooses: R̂ and ESS take milliseconds each. The warning says so.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_R_HAT = 1.01
_LEAST_ESS_PER_CHAIN = 100
_NARROWEST, _WIDEST = 0.9, 1.1
_PARAMETERS_LOOKED_AT = 500


@dataclass(frozen=True)
class Diagnostics:
    r_hat: float
    ess: float
    width: float
    warning: str | None

    @property
    def ok(self) -> bool:
        return self.warning is None


def diagnose(draws: Tensor, gradients: Tensor) -> Diagnostics:
    """`draws` (chains, kept, p); `gradients` (chains, seen, p): ∇U, or unbiased for it, at draws spread evenly."""
    looked_at = _looked_at(draws.shape[2])
    r_hat, ess = _mixing(draws[:, :, looked_at])
    width = _width(draws, gradients)
    needed = _LEAST_ESS_PER_CHAIN * len(draws)
    complaints = []
    if not r_hat <= _MOST_R_HAT:
        complaints.append(
            f"the chains disagree (R-hat {r_hat:.3f}, over {_MOST_R_HAT}): "
            "raise burn_in and iterations, or start nearer the mode"
        )
    if not ess >= needed:
        complaints.append(
            f"the draws are worth only {ess:.0f} independent ones ({needed} needed): "
            "raise iterations together with thinning, or set preconditioned (some thousand parameters at most)"
        )
    if not _NARROWEST <= width <= _WIDEST:
        cure = (
            "lower the step size, raise batch_size or leave it out, or set preconditioned "
            "(some thousand parameters at most)"
            if width > 1
            else "raise iterations, so that they reach all of it"
        )
        complaints.append(f"the draws spread {width:.2f} times as wide as the posterior: {cure}")
    if complaints and len(looked_at) < draws.shape[2]:
        complaints.append(f"R-hat and the worth are of {len(looked_at)} of the {draws.shape[2]} parameters only")
    return Diagnostics(r_hat, ess, width, "; ".join(complaints) or None)


def _looked_at(parameters: int) -> Tensor:
    # Not every so-many-th: that could meet the same column of each layer's weights.
    shuffled = torch.randperm(parameters, generator=torch.Generator().manual_seed(0))
    return shuffled[:_PARAMETERS_LOOKED_AT]


def _width(draws: Tensor, gradients: Tensor) -> float:
    offsets = at_even_steps(draws, gradients.shape[1]) - draws.mean((0, 1))
    virial = float((offsets * gradients).sum(2).mean()) / draws.shape[2]
    # Where the potential is not convex, far-off draws may push outwards: no width at all.
    return math.sqrt(virial) if virial >= 0 else 0.0


def at_even_steps(draws: Tensor, count: int) -> Tensor:
    """`count` of the draws of each chain, the last one among them."""
    kept = draws.shape[1]
    return draws[:, [(kept * (index + 1)) // count - 1 for index in range(count)]]


def _mixing(draws: Tensor) -> tuple[float, float]:
    """The worst R̂ and the least bulk effective sample size."""
    with warnings.catch_warnings():
        # arviz warns of its next version, of few draws and of NaN: the last two show in what it returns.
        warnings.simplefilter("ignore")
        import arviz

        dataset = arviz.convert_to_dataset({"theta": draws.cpu().numpy()})  # type: ignore[no-untyped-call]
        r_hat = arviz.rhat(dataset)["theta"]  # type: ignore[no-untyped-call]
        ess = arviz.ess(dataset, method="bulk")["theta"]  # type: ignore[no-untyped-call]
    return float(r_hat.max(skipna=False)), float(ess.min(skipna=False))
