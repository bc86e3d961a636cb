"""Diagnostics of a sample set: agreement of the chains, effective sample size, and width relative to the posterior.

    r_hat   rank-normalised split-R̂ of the worst parameter: at most 1.01     (Vehtari et al. 2021)
    ess     bulk effective sample size of the worst one: at least 100 a chain (same paper)
    width   √( E (θ - θ̄)·∇U(θ) / p ): 0.9 to 1.1

Integrating by parts, E (θ_j - c) ∂_jU(θ) = 1 for every parameter of any posterior e^(-U) and every c (Stein's identity;
the virial theorem). Draws of a chain that is too wide by a factor, which R̂ and ESS cannot detect, give that factor
instead. At a width of 1.1, a Gaussian is 0.01 nats per parameter from the truth.

The width averages over all parameters. R̂ and ESS take milliseconds per parameter: in models of more than 500, the worst
parameter is the worst of 500 chosen by a fixed seed, and the warning says so.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_R_HAT = 1.01
_MIN_ESS_PER_CHAIN = 100
_MIN_WIDTH, _MAX_WIDTH = 0.9, 1.1
_MAX_CHECKED_PARAMETERS = 500


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a sample set. `warning` names the limits it misses and what to change; None if it meets all."""

    r_hat: float
    ess: float
    width: float
    mean_gradient: float
    mean_gradient_limit: float
    virial: float
    virial_limit: float
    worst_parameter: int | None
    undetectable: float
    warning: str | None

    @property
    def ok(self) -> bool:
        return self.warning is None


def diagnose(draws: Tensor, gradients: Tensor, log_weights: Tensor | None = None) -> Diagnostics:
    """Diagnose draws of shape (chains, draws, p).

    `gradients` (chains, m, p) are ∇U, or unbiased estimates of it, at m evenly spaced draws of each chain.
    """
    checked = _checked_parameters(draws.shape[2])
    r_hat, ess = _mixing(draws[:, :, checked])
    width = _width(draws, gradients)
    needed = _MIN_ESS_PER_CHAIN * len(draws)
    problems = []
    if not r_hat <= _MAX_R_HAT:
        problems.append(
            f"the chains disagree (R-hat {r_hat:.3f}, over {_MAX_R_HAT}): "
            "raise burn_in and iterations, or start nearer the mode"
        )
    if not ess >= needed:
        problems.append(
            f"the draws are worth only {ess:.0f} independent ones ({needed} needed): "
            "raise iterations together with thinning, or set preconditioned (some thousand parameters at most)"
        )
    if not _MIN_WIDTH <= width <= _MAX_WIDTH:
        remedy = (
            "lower the step size, raise batch_size or leave it out, or set preconditioned "
            "(some thousand parameters at most)"
            if width > 1
            else "raise iterations, so that they reach all of it"
        )
        problems.append(f"the draws spread {width:.2f} times as wide as the posterior: {remedy}")
    if problems and len(checked) < draws.shape[2]:
        problems.append(f"R-hat and the worth are of {len(checked)} of the {draws.shape[2]} parameters only")
    nan, undetectable = math.nan, draws.shape[2] / min(ess, gradients[..., 0].numel())
    return Diagnostics(r_hat, ess, width, nan, nan, nan, nan, None, undetectable, "; ".join(problems) or None)


def _checked_parameters(parameters: int) -> Tensor:
    # Random, not every k-th: a fixed stride could meet the same column of each layer's weights.
    shuffled = torch.randperm(parameters, generator=torch.Generator().manual_seed(0))
    return shuffled[:_MAX_CHECKED_PARAMETERS]


def _width(draws: Tensor, gradients: Tensor) -> float:
    offsets = evenly_spaced_draws(draws, gradients.shape[1]) - draws.mean((0, 1))
    virial = float((offsets * gradients).sum(2).mean()) / draws.shape[2]
    # Where the potential is not convex, gradients at remote draws may point outwards. Such draws have no width.
    return math.sqrt(virial) if virial >= 0 else 0.0


def evenly_spaced_draws(draws: Tensor, count: int) -> Tensor:
    """Return `count` evenly spaced draws of each chain, the last draw among them."""
    length = draws.shape[1]
    return draws[:, [(length * (index + 1)) // count - 1 for index in range(count)]]


def _mixing(draws: Tensor) -> tuple[float, float]:
    """Return the largest R̂ and the smallest bulk effective sample size."""
    with warnings.catch_warnings():
        # arviz warns of its next version, of few draws and of NaN; the last two show in its results.
        warnings.simplefilter("ignore")
        import arviz

        dataset = arviz.convert_to_dataset({"theta": draws.cpu().numpy()})  # type: ignore[no-untyped-call]
        r_hat = arviz.rhat(dataset)["theta"]  # type: ignore[no-untyped-call]
        ess = arviz.ess(dataset, method="bulk")["theta"]  # type: ignore[no-untyped-call]
    return float(r_hat.max(skipna=False)), float(ess.min(skipna=False))
