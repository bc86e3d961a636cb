"""Influence step for variational posteriors."""

from __future__ import annotations

from torch import Tensor

from ml.models.family import Family
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve

# The step removes at most this share of any precision 1/σ².
_MAX_PRECISION_LOSS = 0.95


def influence_step(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, hessian: Tensor | None = None
) -> MeanFieldGaussian:
    """Return γ⁻ = γ + H(S)⁻¹ Σ_{z∈S'} ∇h(γ, z), taken along the natural parameters (μ/σ², 1/σ²).

    `hessian` is H(S), as training or the last outcome returned it; None computes it.

    With (dm, ds) the step in (μ, σ), its push-forward is d(1/σ²) = -2ds/σ³ and d(μ/σ²) = dm/σ² - 2μ ds/σ³. Adding it
    and mapping back leaves the share c = 1 - 2ds/σ of the precision:  μ⁻ = μ + dm/c,  σ⁻ = σ/√c.
    """
    if hessian is None:
        hessian = family.expand(posterior, data).hessian
    dm, ds = solve(hessian, family.group_gradient(posterior, data[forgotten])).x.chunk(2)
    loss = 2 * ds.reshape(posterior.std.shape) / posterior.std
    length = min(1.0, _MAX_PRECISION_LOSS / max(float(loss.max()), _MAX_PRECISION_LOSS))
    share = 1 - length * loss
    return MeanFieldGaussian(
        posterior.mean + length * dm.reshape(posterior.mean.shape) / share, posterior.std / share.sqrt()
    )
