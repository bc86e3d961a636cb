"""Checks of draws against their potential U by Stein's identities, each in standard errors with a limit of its own.

For draws of any posterior e^(-U), integrating by parts, with every constant c and every pair of vectors a·b = 1,

    mean gradient   E ∂_jU = 0                        draws around another point, of other rows or another prior
    virial          E (θ_j - c_j) ∂_jU = 1            draws too wide or too narrow: the squared ratio of the widths
    directions      E (a·(θ - c)) (b·∇U) = 1          the same along any direction

The mean gradient is tested parameter by parameter and jointly (Hotelling's T²). So is the virial: by parameter, and as
its average, which is the squared width of all draws. Draws with the right widths but wrong correlations pass all of
these. With C the covariance of the draws, the Stein matrix M = E C^(-1/2)(θ - c) (C^(1/2)∇U)ᵀ is the identity, and for
Gaussians its eigenvalues are the ratios of variances. The directions of its largest and smallest eigenvalue on one half
of the chains are tested on the other half, where they are fixed vectors, and vice versa: four tests.

Each of the five checks is to fail for `_FALSE_ALARMS` of all sets of true draws (Bonferroni's inequality for parameters
and directions). Virials are skewed like χ², which their deviations correct (`ml.inference.autocorrelation`). Errors are
estimated, from autocorrelated draws: hence quantiles of Student's t, with `_DRAWS_PER_DEGREE` effective draws for a
degree of freedom: a cautious choice, not fitted, whose false alarms were counted in simulations.

**What the checks cannot exclude.** Near the posterior, with Gaussians, draws displaced by δ and with Stein matrix M
diverge by ½ δᵀC⁻¹δ + ¼‖M - I‖² nats. Measured in standard errors, these are p + p(p+1)/2 deviations z, and a deviation
of one standard error s is ½s² nats (s²/4 for a virial, whose s² is 2/N). For true draws Σz² is χ², for others
noncentral; the noncentrality λ at which a value as low as the observed one has the probability 5 % is the upper limit
for the draws at hand, and ½ λ s² ~ λ/2N nats is the divergence that they cannot exclude. An observed value below the
median is raised to it: luck does not sharpen a test. Where there are too many parameters for M, its diagonal is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ml.inference.autocorrelation import MeanEstimate, estimate_mean
from ml.numerics.quantiles import f_quantile, largest_noncentrality, student_t_quantile

_FALSE_ALARMS = 1e-3  # of each check
_DRAWS_PER_DEGREE = 8
# Covariances of p parameters need several times as many draws, and matrices of p x p time and memory.
_DRAWS_PER_PARAMETER = 3
_MAX_DENSE_PARAMETERS = 300
_SINGULAR = 1e-12  # least eigenvalue of a correlation matrix
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Check:
    """Estimate, its deviation in standard errors with a limit, and the parameter that deviates most."""

    value: float
    deviation: float
    limit: float
    parameter: int

    @property
    def passed(self) -> bool:
        return self.deviation <= self.limit  # false for NaN

    @property
    def strain(self) -> float:
        """Deviation as a multiple of the limit."""
        return math.inf if math.isnan(self.deviation) else self.deviation / self.limit


@dataclass(frozen=True, eq=False)
class CheckedDraws:
    """Draws with ∇U, or unbiased estimates of it: (chains, draws, p) each. `weights` (chains, draws) have mean 1."""

    draws: Tensor
    gradients: Tensor
    weights: Tensor

    @cached_property
    def offsets(self) -> Tensor:
        return self.draws - (self.weights.unsqueeze(2) * self.draws).mean((0, 1))

    @cached_property
    def mean_gradient(self) -> MeanEstimate:
        return estimate_mean(self.gradients, self.weights)

    @cached_property
    def effective(self) -> float:
        """The number of independent draws that the worst parameter's mean gradient is worth."""
        return float(self.mean_gradient.effective.min())

    @cached_property
    def scale(self) -> Tensor:
        """Standard deviations of the draws."""
        return (self.weights.unsqueeze(2) * self.offsets.square()).mean((0, 1)).sqrt()

    @property
    def dense(self) -> bool:
        """Whether the draws are enough for covariances of all parameters, and every parameter moves."""
        parameters = self.draws.shape[2]
        enough = parameters <= _MAX_DENSE_PARAMETERS and self.effective >= _DRAWS_PER_PARAMETER * parameters
        return enough and bool((self.scale > 0).all())

    def virial(self, left: Tensor, right: Tensor) -> MeanEstimate:
        """Estimate the means of products of two series of mean 0; corrected for the mean that was subtracted."""
        mean = estimate_mean(left * right, self.weights)
        return replace(mean, value=mean.value / (1 - 1 / self.effective))

    def halves(self) -> tuple[CheckedDraws, CheckedDraws]:
        """Split by chains, which are independent of each other; a single chain in its middle."""
        middle = self.draws.shape[1] // 2
        parts = (self.draws, self.gradients, self.weights)
        if len(self.draws) == 1:
            return CheckedDraws(*(part[:, :middle] for part in parts)), CheckedDraws(
                *(part[:, middle:] for part in parts)
            )
        return CheckedDraws(*(part[::2] for part in parts)), CheckedDraws(*(part[1::2] for part in parts))


def check_mean_gradient(checked: CheckedDraws) -> Check:
    """Test E ∂_jU = 0 of each parameter."""
    mean = checked.mean_gradient
    return _worst(mean.deviations(0.0), mean)


def check_joint_mean_gradient(checked: CheckedDraws) -> Check | None:
    """Test E ∇U = 0 jointly; None if there are too few draws. The deviation is T² in units of p."""
    if not checked.dense:
        return None
    parameters, degrees = checked.draws.shape[2], checked.effective - 1
    remaining = degrees - parameters + 1
    limit = f_quantile(_FALSE_ALARMS, parameters, remaining) * degrees / remaining
    squared = _hotelling(checked) / parameters
    return Check(squared, squared, limit, check_mean_gradient(checked).parameter)


def check_virial(checked: CheckedDraws) -> Check:
    """Test E (θ_j - c_j) ∂_jU = 1 of each parameter."""
    virial = checked.virial(checked.offsets, checked.gradients)
    return _worst(virial.deviations(1.0), virial)


def check_width(checked: CheckedDraws) -> Check:
    """Test the average of the virials over all parameters: the squared width relative to the posterior."""
    virial = _average_virial(checked)
    return _worst(virial.deviations(1.0), virial)


def unnoticed_width(checked: CheckedDraws) -> float:
    """Return by how much the squared width may differ from 1 before `check_width` fails."""
    virial = _average_virial(checked)
    return float(virial.error) * _limit(float(virial.effective), tests=1)


def _average_virial(checked: CheckedDraws) -> MeanEstimate:
    total = (checked.offsets * checked.gradients).mean(2, keepdim=True)
    return checked.virial(total, torch.ones_like(total))


def check_directions(checked: CheckedDraws) -> Check | None:
    """Test the virial along directions that the other half of the draws suggests; None if there are too few draws."""
    first, second = checked.halves()
    if not (first.dense and second.dense):
        return None
    checks = [*_tested_directions(first, second), *_tested_directions(second, first)]
    return max(checks, key=lambda check: check.strain)


def undetectable_divergence(checked: CheckedDraws) -> float:
    """Return the divergence in nats that the draws could not exclude; infinite if nothing was measured."""
    squares, count, error = _dense_deviations(checked) if checked.dense else _diagonal_deviations(checked)
    if not math.isfinite(squares * error):
        return math.inf
    return 0.5 * largest_noncentrality(squares, count, _CONFIDENCE) * error


def typical_undetectable(checked: CheckedDraws, exact: bool) -> float:
    """Return the same of draws with symmetries, if all deviations are equally many standard errors.

    One poorly measured parameter does not speak for all, as it does in `undetectable_divergence`: the s² are averaged.
    A displacement is measured in local widths, which are 1/√E(∂_jU)² if the gradients are `exact`. The standard
    deviation of the draws is larger, as they visit several modes; it is used if the gradients are noisy.
    """
    mean, virial = checked.mean_gradient, checked.virial(checked.offsets, checked.gradients)
    squares = (mean.value / mean.error).square().sum() + ((virial.value - 1) / virial.error).square().sum()
    local = (checked.weights.unsqueeze(2) * checked.gradients.square()).mean((0, 1)).rsqrt()
    scale = torch.minimum(local, checked.scale) if exact else checked.scale
    error = torch.cat([(scale * mean.error).square(), virial.error.square() / 2]).mean()
    if not math.isfinite(float(squares * error)):
        return math.inf
    return 0.5 * largest_noncentrality(float(squares), 2 * len(mean.value), _CONFIDENCE) * float(error)


def least_undetectable(parameters: int, draws: int) -> float:
    """Return what `typical_undetectable` is for independent draws of a Gaussian with exact gradients, at best."""
    return 0.5 * largest_noncentrality(0.0, 2 * parameters, _CONFIDENCE) / draws


def _worst(deviations: Tensor, mean: MeanEstimate) -> Check:
    """Return the largest of some deviations, with the limit for as many tests."""
    sizes = deviations.abs()
    parameter = int(sizes.nan_to_num(nan=math.inf).argmax())
    limit = _limit(float(mean.effective.min()), len(sizes))
    return Check(float(mean.value[parameter]), float(sizes[parameter]), limit, parameter)


def _limit(effective: float, tests: int) -> float:
    """Return the limit of the largest of some deviations from as many effective draws."""
    return student_t_quantile(_FALSE_ALARMS / (2 * tests), max(1.0, effective / _DRAWS_PER_DEGREE))


def _hotelling(checked: CheckedDraws) -> float:
    """Return T²: squared deviations along the principal directions of the gradients, each with its own error."""
    scaled = checked.gradients * checked.scale
    mean = estimate_mean(scaled, checked.weights)
    deviations = scaled - mean.value
    directions = torch.linalg.eigh(_covariance(deviations, deviations, checked.weights))[1]
    along = estimate_mean(scaled @ directions, checked.weights)
    return float((along.value / along.error).square().sum())


def _covariance(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of left rightᵀ."""
    weighted = (weights.unsqueeze(2) * left).flatten(0, 1)
    return weighted.T @ right.flatten(0, 1) / weights.numel()


def _whitening(checked: CheckedDraws) -> tuple[Tensor, Tensor]:
    """Return C^(-1/2) and C^(1/2) up to rotations, as maps of offsets and gradients; their transposed product is I."""
    correlation = _covariance(checked.offsets / checked.scale, checked.offsets / checked.scale, checked.weights)
    values, vectors = torch.linalg.eigh(correlation)
    roots = values.clamp(min=_SINGULAR).sqrt()
    return vectors / roots / checked.scale.unsqueeze(1), vectors * roots * checked.scale.unsqueeze(1)


def _tested_directions(fitted: CheckedDraws, tested: CheckedDraws) -> Iterator[Check]:
    """Yield the tests of the two extreme directions of one half on the other."""
    inverse, root = _whitening(fitted)
    stein = _covariance(fitted.offsets @ inverse, fitted.gradients @ root, fitted.weights)
    vectors = torch.linalg.eigh(stein + stein.T)[1][:, [0, -1]]
    left, right = inverse @ vectors, root @ vectors
    virial = tested.virial(tested.offsets @ left, tested.gradients @ right)
    for direction, deviation in enumerate(virial.deviations(1.0).tolist()):
        loadings = left[:, direction].abs() * fitted.scale
        limit = _limit(float(virial.effective[direction]), tests=4)
        yield Check(float(virial.value[direction]), abs(deviation), limit, int(loadings.argmax()))


def _dense_deviations(checked: CheckedDraws) -> tuple[float, int, float]:
    """Return Σz² of mean gradient and Stein matrix, the number of terms, and s² of the least certain one."""
    inverse, root = _whitening(checked)
    offsets, gradients = checked.offsets @ inverse, checked.gradients @ root
    mean, virial = estimate_mean(gradients, checked.weights), checked.virial(offsets, gradients)
    error = torch.maximum(mean.error.square(), virial.error.square() / 2).max()
    squares, variances = _stein_deviations(checked, offsets, gradients)
    time = (virial.error.square() * checked.weights.numel() / variances.diagonal()).max()
    parameters = len(mean.value)
    return (
        _hotelling(checked) + float((squares / variances).triu().sum() * checked.weights.numel() / time),
        parameters + parameters * (parameters + 1) // 2,
        float(error),
    )


def _stein_deviations(checked: CheckedDraws, offsets: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared entries of ½(M + Mᵀ) - I, and the variances of the draws that they are means of."""
    weights, twice = checked.weights, checked.weights.square()
    stein, weighted = (_symmetric(_covariance(offsets, gradients, weight)) for weight in (weights, twice))
    virials = offsets * gradients
    crossed = _symmetric(_covariance(offsets.square(), gradients.square(), twice))
    second = (crossed + _covariance(virials, virials, twice)) / 2
    variances = second - 2 * stein * weighted + stein.square() * twice.mean()
    identity = torch.eye(len(stein), dtype=stein.dtype, device=stein.device)
    return (stein - identity).square(), variances


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


def _diagonal_deviations(checked: CheckedDraws) -> tuple[float, int, float]:
    """Return the same of the parameters one by one."""
    mean, virial = checked.mean_gradient, checked.virial(checked.offsets, checked.gradients)
    squares = (mean.value / mean.error).square().sum() + ((virial.value - 1) / virial.error).square().sum()
    error = torch.maximum((checked.scale * mean.error).square(), virial.error.square() / 2).max()
    return float(squares), 2 * len(mean.value), float(error)
