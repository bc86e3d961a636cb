"""Means over correlated draws: their standard errors, and the number of independent draws that they are worth.

The mean of N draws f_t of a stationary chain has the variance Var(f)·τ/N, with the integrated autocorrelation time
τ = 1 + 2 Σ_l ρ_l. The sum ends where pairs of neighbouring correlations cease to be positive and to fall (C. Geyer,
Practical Markov chain Monte Carlo, 1992). Correlations are taken around the mean of all chains, so that chains that
disagree count as correlated draws. τ below 1, as of antithetic chains, counts as 1: N draws are worth at most N.

With importance weights w_t of mean 1, the error of mean(w f) is that of the series w_t (f_t - mean(w f)).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MeanEstimate:
    """Weighted means of k series: (k,) each. `skewness` is that of the means, `effective` counts independent draws."""

    value: Tensor
    error: Tensor
    skewness: Tensor
    effective: Tensor

    def deviations(self, expected: float) -> Tensor:
        """Return the deviations from an expected mean in standard errors, corrected for skewness.

        Of a skewed series, mean and error rise together, and the low tail of t = (mean - expected)/error is long. The
        cubic of P. Hall (On the removal of skewness by transformation, 1992) is nearly normal instead. It is flat
        where it turns, far beyond all limits of true means; there a third of t takes its place.
        """
        plain, skewness = (self.value - expected) / self.error, self.skewness
        corrected = plain + skewness * plain.square() / 3 + skewness.square() * plain**3 / 27 + skewness / 6
        return torch.where(corrected.abs() < plain.abs() / 3, plain / 3, corrected)


def estimate_mean(series: Tensor, weights: Tensor) -> MeanEstimate:
    """Return the means of series of shape (chains, draws, k) with weights (chains, draws) of mean 1."""
    draws, weight = weights.numel(), weights.unsqueeze(2)
    value = (weight * series).mean((0, 1))
    deviation = series - value
    residual = weight * deviation
    second, third = residual.square().mean((0, 1)), residual.pow(3).mean((0, 1))
    variance_share = autocorrelation_times(residual) / draws
    error = (second * variance_share).sqrt()
    variance = (residual * deviation).mean((0, 1))
    effective = (variance / error.square()).clamp(max=draws / float(weights.square().mean()))
    return MeanEstimate(value, error, third / second**1.5 * variance_share.sqrt(), effective)


def autocorrelation_times(series: Tensor) -> Tensor:
    """Return τ of each of k series of mean 0, of shape (chains, draws, k); NaN where a series is constant."""
    length = series.shape[1]
    spectrum = torch.fft.rfft(series, n=2 * length, dim=1).abs().square().mean(0)
    covariance = torch.fft.irfft(spectrum, n=2 * length, dim=0)[: length + length % 2]
    pairs = (covariance / covariance[0]).unflatten(0, (-1, 2)).sum(1)
    falling = pairs.cummin(0).values * (pairs > 0).cumprod(0)
    times: Tensor = (2 * falling.sum(0) - 1).clamp(min=1)
    return times
