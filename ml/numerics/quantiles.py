"""Quantiles of Student's t, F and χ², and confidence limits of a noncentral χ². scipy is loaded at the first call."""

from __future__ import annotations

import math

_LARGE = 1e5


def student_t_quantile(tail: float, degrees: float) -> float:
    """Return the value that Student's t exceeds with the probability `tail`."""
    from scipy import special  # type: ignore[import-untyped]

    return -float(special.stdtrit(degrees, tail))


def f_quantile(tail: float, numerator: float, denominator: float) -> float:
    """Return the value that F with these degrees of freedom exceeds with the probability `tail`."""
    from scipy import special

    return float(special.fdtri(numerator, denominator, 1 - tail))


def chi_square_quantile(tail: float, degrees: float) -> float:
    """Return the value that χ² exceeds with the probability `tail`."""
    from scipy import special

    return float(special.chdtri(degrees, tail))


def largest_noncentrality(observed: float, degrees: float, confidence: float) -> float:
    """Return the noncentrality up to which an observed noncentral χ² has at least the probability 1 - confidence.

    It is the upper confidence limit. Below the median of χ² an observation counts as the median: by chance, a value can
    be so low that no noncentrality explains it, but that is luck, not precision.

    The root of a noncentral χ² is the length of a vector of mean √λ, so at least its component along the mean. Hence
    (√observed + z)², z the normal quantile of the confidence, is never below the limit. It is little above it for large
    values, where scipy's search takes a minute or fails.
    """
    from scipy import special

    at_least = max(observed, chi_square_quantile(0.5, degrees))
    if at_least > _LARGE:
        return (math.sqrt(at_least) + float(special.ndtri(confidence))) ** 2
    return float(special.chndtrinc(at_least, degrees, 1 - confidence))
