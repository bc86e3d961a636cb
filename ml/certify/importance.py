"""Statistics of the weights that moved samples carry, log w_t = log p(Tθ_t, R) + log|det ∇T| - log p(θ_t, S).

    KL(T#p_S ‖ p_R) = log E w - E log w

Every constant of log w drops out: the evidence, and a log|det ∇T| known to first order only, alike. (The other
direction, E[w log w]/E w - log E w, lives by the tail that samples hardly see: intervals for it, made the same way,
were below the truth in 13 of 501 trials where these were in 5, and some far below. So it is not estimated.)

The interval resamples whole blocks of √K neighbouring draws of a chain of K, since neighbours repeat each other. A
sample sees too little of the tail of w, so that an estimate is low more often than high, and furthest where its spread
looks small too: percentile and BCa intervals covered 88 % where 95 % was claimed, symmetric ones on the log scale 90 %
(1,300 sets of weights with quadratic and cubic log w). So it goes, on the log scale, 2½ standard errors down and 4 up;
`benchmarks/certificates/coverage.py` measures what that covers.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.forgetting.samples import Moved
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.numerics.rounding import gamma

_ERRORS_DOWN, _ERRORS_UP = 2.5, 4.0
_REPLICATES = 1000
_LARGEST_EXPONENT = 700.0  # of e in float64
_MOST_PARAMETERS = 2000  # for a dense least-squares fit


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float


def weigh(
    likelihood: Likelihood, samples: Tensor, moved: Moved, data: Tensor, retained: Tensor
) -> tuple[Tensor, float]:
    """log w_t of every sample, and about how far rounding can move one of them: as sums of n terms of one sign."""
    before = Potential(likelihood, data).values(samples)
    after = Potential(likelihood, retained).values(moved.samples)
    largest = max(float(before.abs().max()), float(after.abs().max()))
    return before - after + moved.log_det, 2 * gamma(len(data) + samples.shape[1]) * largest


def divergence(log_weights: Tensor, chain: Tensor, rounding: float, seed: int) -> Estimate:
    """KL(T#p_S ‖ p_R) with its interval; NaN where a weight is not finite.

    With p the normalised weights of T draws and u = 1/T it is KL(u ‖ p). Errors of up to `rounding` in log w move it by
    at most rounding·|p-u|₁ + rounding²/2, of which |p-u|₁ ≤ √(2 KL) (Pinsker).
    """
    centred = log_weights - log_weights.mean()
    terms = torch.stack([torch.expm1(centred), centred, torch.ones_like(centred)], 1)
    replicates = _from_sums(_resampled(terms, chain, torch.Generator().manual_seed(seed)))
    return _interval(float(_from_sums(terms.sum(0))), float(replicates.std()), rounding)


def _from_sums(sums: Tensor) -> Tensor:
    """log mean w - mean log w from sums (…, 3) of w - 1, log w and 1."""
    excess, logarithm, count = sums.unbind(-1)
    return torch.log1p(excess / count) - logarithm / count


def _resampled(terms: Tensor, chain: Tensor, generator: torch.Generator) -> Tensor:
    """Sums over as many blocks, drawn with replacement, as there are: (replicates, columns)."""
    blocks = torch.cat([_block_sums(terms[chain == number]) for number in sorted(set(chain.tolist()))])
    chosen = torch.randint(len(blocks), (_REPLICATES, len(blocks)), generator=generator).to(blocks.device)
    return blocks[chosen].sum(1)


def _block_sums(terms: Tensor) -> Tensor:
    """Over neighbours, √K of them at a time; what is left over at the start of the chain is not resampled."""
    length = max(1, round(math.sqrt(len(terms))))
    count = len(terms) // length
    return terms[len(terms) - count * length :].reshape(count, length, -1).sum(1)


def _interval(value: float, spread: float, rounding: float) -> Estimate:
    slack = rounding * math.sqrt(2 * max(value, 0.0)) + rounding * rounding / 2
    if value <= 0:  # equal weights; the rest is rounding
        return Estimate(0.0, 0.0, slack)
    error = spread / value
    down, up = value * math.exp(-_ERRORS_DOWN * error), value * math.exp(min(_ERRORS_UP * error, _LARGEST_EXPONENT))
    return Estimate(value, max(0.0, down - slack), up + slack)


def relative_ess(log_weights: Tensor) -> float:
    """(Σw)²/(T Σw²): the share of the draws that the weights leave."""
    normalised = torch.softmax(log_weights, 0)
    return 1 / (len(log_weights) * float(normalised.dot(normalised)))


def pareto_k(log_weights: Tensor, rounding: float) -> float:
    """The shape k̂ of the weights' tail: moments of w beyond 1/k̂ are infinite."""
    if not bool(torch.isfinite(log_weights).all()):
        return math.nan
    if float(log_weights.max() - log_weights.min()) <= 2 * rounding:
        return 0.0  # equal but for rounding, which has no tail to fit
    with warnings.catch_warnings():
        # arviz warns of its next version, and of what k̂ itself says.
        warnings.simplefilter("ignore")
        import arviz

        _, k_hat = arviz.psislw(log_weights.cpu().numpy())  # type: ignore[no-untyped-call]
    return float(k_hat)


def unevenness(before: Tensor, moved: Tensor) -> float:
    """How many standard deviations a sample lies, at most, from the affine map that fits all best; NaN if not checked.

    log w takes ∇T to be the same everywhere. Samples that were moved one way here and another there, or by a solver
    that failed for some of them, do not weigh what it says.
    """
    draws, parameters = before.shape
    if draws < 2 * (parameters + 1) or parameters > _MOST_PARAMETERS or not bool(torch.isfinite(moved).all()):
        return math.nan
    offsets, change = before - before.mean(0), moved - before
    smallest = torch.finfo(before.dtype).tiny  # of a parameter that never moved
    factors = torch.cat([offsets / before.std(0).clamp(min=smallest), torch.ones_like(offsets[:, :1])], 1)
    misfit = change - factors @ torch.linalg.lstsq(factors, change).solution
    return float((misfit.abs() / moved.std(0).clamp(min=smallest)).max())
