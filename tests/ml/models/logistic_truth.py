"""Expectations of the log-loss f(t) = log(1+e^t) over t = b + vz in mpmath, by short steps over a wide range."""

from __future__ import annotations

from collections.abc import Callable

import mpmath

Function = Callable[[mpmath.mpf], mpmath.mpf]
_LAST_NODE = 200  # f'' has fallen to e^-60 there


def slope(t: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-t))


def curvature(t: mpmath.mpf) -> mpmath.mpf:
    return slope(t) * slope(-t)


def third(t: mpmath.mpf) -> mpmath.mpf:
    return curvature(t) * (slope(-t) - slope(t))


def fourth(t: mpmath.mpf) -> mpmath.mpf:
    return curvature(t) * (1 - 6 * curvature(t))


def loss(t: mpmath.mpf) -> mpmath.mpf:
    return max(t, mpmath.mpf(0)) + mpmath.log1p(mpmath.exp(-abs(t)))


def expect_loss(centre: float, width: float) -> mpmath.mpf:
    if width <= 4:
        return _over_z(loss, centre, width)
    return width * _over_t(curvature, lambda z: mpmath.npdf(z) - z * mpmath.ncdf(-z), centre, width)


def expect_slope(centre: float, width: float) -> mpmath.mpf:
    if width <= 4:
        return _over_z(slope, centre, width)
    return _over_t(curvature, lambda z: mpmath.ncdf(-z), centre, width)


def expect_local(function: Function, centre: float, width: float) -> mpmath.mpf:
    """Return the expectation of a function that vanishes far from 0, as f'' and higher derivatives do."""
    if width <= 4:
        return _over_z(function, centre, width)
    return _over_t(function, mpmath.npdf, centre, width) / width


def _over_z(function: Function, centre: float, width: float) -> mpmath.mpf:
    centre, width = mpmath.mpf(centre), mpmath.mpf(width)
    step = 3 / (10 * max(mpmath.mpf(1), mpmath.ceil(width)))
    last = int(12 / step)
    nodes = (step * j for j in range(-last, last + 1))
    return step * mpmath.fsum(mpmath.npdf(z) * function(centre + width * z) for z in nodes)


def _over_t(function: Function, weight: Function, centre: float, width: float) -> mpmath.mpf:
    centre, width, step = mpmath.mpf(centre), mpmath.mpf(width), mpmath.mpf(3) / 10
    nodes = (step * j for j in range(-_LAST_NODE, _LAST_NODE + 1))
    return step * mpmath.fsum(function(t) * weight((t - centre) / width) for t in nodes)
