"""Validation of a minimum on held-out rows: how far their energy falls, and how linear the network is on the way."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ml.certify.network.sample import NetworkSample, Tangent

NORMAL_95 = 1.96  # quantile of the normal distribution, two-sided


@dataclass(frozen=True)
class Validation:
    """Lower limit of the excess in nats, and the network's deviation from its linearisation with 95 % confidence.

    `softer` is the share by which the network's energy may lie below that of the linearised network along the drift and
    on the way to the minimum. `deviation` is the share by which it may differ at the end of the drift.
    """

    lower_limit: float
    softer: float
    deviation: float


def validate(sample: NetworkSample, drift: Tensor, pull: Tensor, lowest: Tensor) -> Validation:
    """Step from `drift` towards the minimum `lowest` of another sample, only as far as this sample's energy falls."""
    start, end, step = sample.tangent(drift), sample.tangent(lowest), lowest - drift
    change = Tangent(start.p, end.logit_change - start.logit_change, end.slope - start.slope)
    slope = sample.bilinear_form(step, drift, change.curvature(start)) - float(step.dot(pull))
    curvature = sample.bilinear_form(step, step, change.curvature(change))
    length = min(1.0, max(0.0, -slope / curvature)) if curvature > 0 else 0.0
    falls = -length * change.curvature(start) - 0.5 * length**2 * change.curvature(change)
    fall = -length * slope - 0.5 * length**2 * curvature - NORMAL_95 * sample.standard_error(falls)
    reached = Tangent(start.p, start.logit_change + length * change.logit_change, start.slope + length * change.slope)
    deviation, margin = _relative_deviation(sample, drift, start)
    deviation_reached, margin_reached = _relative_deviation(sample, drift + length * step, reached)
    softer = max(0.0, margin - deviation, margin_reached - deviation_reached)
    return Validation(max(0.0, fall), softer, abs(deviation) + margin)


def _relative_deviation(sample: NetworkSample, drift: Tensor, tangent: Tangent) -> tuple[float, float]:
    """Return (F(Δ) - F(0) - ∇F(0)ᵀΔ)/(½ΔᵀAΔ) - 1 and its margin at 95 %.

    For a network with linear logits only the third derivative of softmax contributes.
    """
    if not bool(drift.any()):
        return 0.0, 0.0
    curvatures = tangent.curvature(tangent)
    deviations = sample.misfits(drift) - sample.misfits_before - tangent.slope - 0.5 * curvatures
    scale = 0.5 * sample.bilinear_form(drift, drift, curvatures)
    return sample.total * float(deviations.mean()) / scale, NORMAL_95 * sample.standard_error(deviations) / scale
