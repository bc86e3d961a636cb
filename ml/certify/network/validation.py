"""Rows that had no part in a minimum judge it: how far they go along, and whether the network is linear on the way."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ml.certify.network.sample import NetworkSample, Tangent

NORMAL = 1.96  # 95 %, two-sided


@dataclass(frozen=True)
class Judged:
    """`least` is a lower end of the excess, in nats.

    Of the energy along a way, `softer` is by what share the network's may lie below the linearised one's, and
    `deviation` by what share it may lie off it at the end of the step that was made, both with 95 % confidence.
    """

    least: float
    softer: float
    deviation: float


def judge(sample: NetworkSample, drift: Tensor, pull: Tensor, lowest: Tensor) -> Judged:
    """Go from the drift towards the lowest point of another sample, only as far as the energy of this one falls."""
    made, far, step = sample.tangent(drift), sample.tangent(lowest), lowest - drift
    missing = Tangent(made.p, far.moved - made.moved, far.slope - made.slope)
    slope = sample.form(step, drift, missing.curved(made)) - float(step.dot(pull))
    curvature = sample.form(step, step, missing.curved(missing))
    length = min(1.0, max(0.0, -slope / curvature)) if curvature > 0 else 0.0
    falls = -length * missing.curved(made) - 0.5 * length**2 * missing.curved(missing)
    fall = -length * slope - 0.5 * length**2 * curvature - NORMAL * sample.standard_error(falls)
    reached = Tangent(made.p, made.moved + length * missing.moved, made.slope + length * missing.slope)
    off, doubt = _off(sample, drift, made)
    off_there, doubt_there = _off(sample, drift + length * step, reached)
    softer = max(0.0, doubt - off, doubt_there - off_there)
    return Judged(max(0.0, fall), softer, abs(off) + doubt)


def _off(sample: NetworkSample, drift: Tensor, tangent: Tangent) -> tuple[float, float]:
    """(F(Δ) - F(0) - ∇F(0)ᵀΔ)/(½ΔᵀAΔ) - 1 and its margin: 0 for a linear network but for the curvature of softmax."""
    if not bool(drift.any()):
        return 0.0, 0.0
    curved = tangent.curved(tangent)
    rises = sample.misfits(drift) - sample.misfits_before - tangent.slope - 0.5 * curved
    scale = 0.5 * sample.form(drift, drift, curved)
    return sample.total * float(rises.mean()) / scale, NORMAL * sample.standard_error(rises) / scale
